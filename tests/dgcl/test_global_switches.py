"""Set-up, a step and inference under each global switch of torch, in a process apart."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, torch, dgcl
def step(switch):
    if switch == "default device":  # of this thread; "meta" stands for "cuda" where there is none
        torch.set_default_device("meta")
    here = {"device": "cpu"}
    edges = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 3]], **here)
    comm = dgcl.build_comm_info(edges, "uniform", part=[0, 0, 1, 1])
    x = comm.dispatch_features(torch.arange(8.0, **here).view(4, 2) if comm.rank == 0 else None)
    linear, norm = torch.nn.Linear(2, 2, **here), dgcl.nn.BatchNorm(2, comm=comm).to_empty(device="cpu")
    norm.reset_parameters()
    dgcl.nn.broadcast_parameters(linear, comm=comm)
    mean, largest = comm.aggregator("mean"), comm.aggregator("max")
    if switch == "inference first":
        with torch.inference_mode():
            mean(x), largest(x), comm.expand(x)
    h = norm(linear(mean(x) + largest(x)))
    h = comm.aggregator()(dgcl.nn.dropout(h, 0.5, comm=comm)) + dgcl.graph_allgather(h)[:2]
    y, mask = torch.tensor([0, 1], **here), torch.tensor([True, True], **here)
    loss = dgcl.nn.loss(torch.nn.functional.cross_entropy, comm=comm)(h, y, mask)
    loss.backward()
    dgcl.nn.sync_gradients(linear, comm=comm)
    dgcl.nn.accuracy(h, y, mask, comm=comm)
    assert dgcl.nn.global_sum(h.sum(0), comm=comm).device.type == "cpu"
    off = dgcl.Offload(comm, chunks=1)
    h = off.layer(linear, off.dispatch_features(torch.ones(4, 2, **here)), aggregate="sum")
    off.cross_entropy(h, y).backward()
    for kind in ("csr", "pyg", "dgl"):
        comm.local_graph(kind)
    with torch.inference_mode():
        return comm.collect(mean(x), None).tolist()
def check(switch):
    first, second = dgcl.launch(step, 2, switch, timeout=100)
    assert first == second == [[6, 7], [0, 1], [1, 2], [3, 4]], (switch, first)
check("inference first")
check("default device")
torch.use_deterministic_algorithms(True)
check("deterministic")
torch.use_deterministic_algorithms(False)
torch.set_default_dtype(torch.float64)
check("default dtype")
os._exit(0)  # on a busy machine torch's threads of gradients may only begin when Python is shutting down, which aborts
"""


@pytest.mark.slow
def test_a_step_under_each_switch():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
