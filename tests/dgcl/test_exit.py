"""Programs that end without closing anything: nothing of ours prints when the interpreter is torn down."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import named

ROOT = Path(__file__).resolve().parents[2]

BUILD = """
import torch, dgcl
dgcl.init()
comm = dgcl.build_comm_info(torch.tensor([[0, 1, 2], [1, 2, 0]]), part=[0, 0, 0])
x = comm.dispatch_features(torch.ones(3, 2)).requires_grad_()
h = dgcl.graph_allgather(x)
"""
ENDS = {
    "a layer's graph": "g = comm.local_graph('csr'); out = g.sum(h).relu()",
    "a graph of autograd": "loss = h.sum()",
    "a started exchange": "pending = dgcl.graph_allgather_async(x)",
    "a cycle": "comm.itself = comm; h.comm = comm",
    "pyg": "from torch_geometric.nn import SAGEConv as C; out = C(2, 2)(h, comm.local_graph('pyg').edge_index)",
}


ALL_BUT_PYG = "; ".join(end for name, end in ENDS.items() if name != "pyg")  # which takes seconds to import


@pytest.mark.slow
@named(
    "end",
    {
        "all of ours": ALL_BUT_PYG,
        "a cycle": ENDS["a cycle"],
        "pyg": ENDS["pyg"],
    },
)
def test_nothing_is_printed_at_exit(end: str):
    if "torch_geometric" in end:
        pytest.importorskip("torch_geometric")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD + end],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert "Traceback" not in ended.stderr
