"""The real thing, small: ranks measure, one fits, and everybody hears of a failure."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dgcl
from dgcl.bench.barrier import Barrier
from dgcl.calibration import Calibration, Effort
from dgcl.calibration import run as run_module
from dgcl.calibration.run import host_structure, outcome_json, run_on_host, run_rank
from dgcl.graph import as_graph
from dgcl.ranks.context import context
from dgcl.ranks.machines import RankPlace
from dgcl.topology import Topology, load_topology, preset, save_topology
from tests.support.samples import named

LEAST = Effort(seconds=0.0, least=1, most=1, rounds=1)


def check_outcome(outcome: Calibration, num_ranks: int):
    """Whatever the figures are: they are figures of everything, and the file can be used."""
    told = outcome_json(outcome)
    topology = outcome.fit.topology
    assert topology.num_devices == told["ranks"] == num_ranks
    assert [c.name for c in topology.connections] == [c.name for c in host_structure(num_ranks).connections]
    assert all(c.bandwidth > 0 and c.latency >= 0 for c in topology.connections)
    assert all(one["seconds"] > 0 and one["predicted"] > 0 for one in told["measured"])
    assert np.isfinite(told["median_residual"])
    senders = [row["senders"] for row in told["contention"] if row["shares"] == "memory"]
    assert senders == list(range(1, min(num_ranks, 4) + 1))
    assert all(row["each"] > 0 for row in told["contention"])


def test_threads():
    check_outcome(run_on_host(None, 2, 256, LEAST, "threads"), 2)


@pytest.mark.slow
def test_a_given_topology(tmp_path):
    declared = replace(host_structure(2), name="mine")
    outcome = run_on_host(declared, 2, 512, LEAST, "threads")
    fitted = outcome.fit.topology
    assert fitted.name == "mine"
    save_topology(fitted, tmp_path / "t.json", about={"calibration": outcome_json(outcome)})
    assert load_topology(tmp_path / "t.json") == fitted
    assert dgcl.launch(_train, 2, str(tmp_path / "t.json")) == ["mine", "mine"]


def _train(path: str) -> str:
    """A communicator planned for the calibrated file, and an exchange over it."""
    graph = as_graph(np.array([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]]), 4)
    comm = dgcl.build_comm_info(graph, topology=path, part=np.array([0, 0, 1, 1], np.int32))
    rows = torch.arange(comm.num_owned, dtype=torch.float64)[:, None] + 2 * comm.rank
    halo = comm.expand(rows)[comm.num_owned :]
    assert halo[:, 0].tolist() == [3.0 if comm.rank == 0 else 1.0]
    return str(comm.plan.topology.name)


@pytest.mark.slow
def test_processes():
    check_outcome(run_on_host(None, 2, 512, Effort(seconds=0.01, least=2, rounds=1)), 2)


@named(
    "topology, message",
    {
        "too many": (preset("uniform:3"), r"a device for each of 2 ranks \(got 3\)"),
        "no links": (Topology("apart", host_structure(2).devices, ()), "no links to calibrate"),
    },
)
def test_topologies_that_do_not_fit(topology: Topology, message: str):
    def rank() -> str:
        with pytest.raises(ValueError, match=message) as caught:
            run_rank(topology, 512, LEAST)
        return str(caught.value)

    told = dgcl.launch(rank, 2)
    assert told[1] == f"{told[0]} (on rank 0)"


def test_several_hosts_are_refused(monkeypatch):
    def place() -> RankPlace:
        return RankPlace(f"id{context.require_control().rank}", f"node{context.require_control().rank}")

    monkeypatch.setattr(run_module, "place_of_this_rank", place)

    def rank():
        with pytest.raises(ValueError, match=r"several hosts \(node0, node1\), whose clocks differ"):
            run_rank(None, 512, LEAST)

    dgcl.launch(rank, 2)


def test_a_rank_that_fails_ends_it(monkeypatch):
    met = 0
    barrier = Barrier.__call__

    def failing(self: Barrier):
        nonlocal met
        met += context.require_control().rank == 1
        if met > 5:
            raise RuntimeError("this rank has had enough")
        barrier(self)

    monkeypatch.setattr(Barrier, "__call__", failing)
    with pytest.raises(RuntimeError, match="this rank has had enough"):
        run_on_host(None, 2, 512, LEAST, "threads")
