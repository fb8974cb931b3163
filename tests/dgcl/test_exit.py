"""Programs that end without closing anything: nothing of ours prints when the interpreter is torn down."""

import ctypes
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
from dgcl.ranks import abort_reasons
from dgcl.ranks.deadlines import in_time
from tests.support.processes import Ranks
from tests.support.samples import named

kept: list[Any] = []
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


def ends_while_the_store_is_slow(channel: Connection):
    """Builds two communicators and ends; a write to the store stays in torch for longer than it is waited for."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    for _ in range(2):
        comm = dgcl.build_comm_info(edges, "uniform", part=[0, 0, 1, 1], channel="collective")
        kept.append(comm)
        assert comm.expand(comm.owned_ids).tolist() == [*comm.owned_ids.tolist(), *comm.halo_ids.tolist()]

    def write(store: Any, *_: str):
        with suppress(TimeoutError):
            in_time(lambda: store.wait(["never"], timedelta(seconds=0.5)), 0.3)

    abort_reasons.store_in_time = write
    channel.send("right")
    ctypes.pythonapi.Py_Exit(0)


@pytest.mark.slow
@named("pairs", {"two": 1, "twenty": 10})
def test_no_thread_is_inside_torch_when_the_interpreter_ends(pairs: int):
    """Such a thread aborts the process when it comes back."""
    ended = []
    for _ in range(pairs):
        with Ranks(2, ends_while_the_store_is_slow) as ranks:
            ranks.told()
            for process in ranks.processes:
                process.join(60)
            ended += [process.exitcode for process in ranks.processes]
    assert ended == [0] * 2 * pairs
