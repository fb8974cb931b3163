"""DGL and PyG are optional: what needs one that is missing says how to install it."""

import sys

import pytest

from dgcl.frameworks import local_graph
from tests.dgcl.awkward import CASES


@pytest.mark.parametrize(
    "kind, package, module",
    [("dgl", "dgl", "dgcl.frameworks.dgl_block"), ("pyg", "torch_geometric", "dgcl.frameworks.pyg")],
)
def test_a_missing_framework_is_named(kind, package, module, monkeypatch):
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install dgcl\[{kind}\]"):
        local_graph(kind, CASES[0].local_graphs(1)[0])
