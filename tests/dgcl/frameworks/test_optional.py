"""DGL and PyG are optional: what needs one that is missing says how to install it."""

import sys

import pytest

from dgcl.frameworks import local_graph
from tests.support.awkward import CASES


@pytest.mark.parametrize("package, module", [("dgl", "dgl_block"), ("torch_geometric", "pyg")])
def test_a_missing_framework_is_named(package, module, monkeypatch):
    monkeypatch.delitem(sys.modules, f"dgcl.frameworks.{module}", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    local = CASES[0].local_graphs(1)[0]
    if package == "dgl":
        with pytest.raises(ImportError, match=r"pip install dgcl\[dgl\]"):
            local_graph("dgl", local)
    else:  # its layers take tensors of torch
        assert local_graph("pyg", local).num_owned == local.num_owned
