from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dgcl
from dgcl import build as building
from dgcl.graph import Graph
from dgcl.planner.methods import METHODS
from dgcl.ranks.context import context
from dgcl.ranks.control import SingleControl
from dgcl.topology import Connection, Device, Topology
from dgcl.transport.common.peers import Peers
from dgcl.transport.connect import open_wire
from tests.support.rank_pool import RankPool
from tests.support.ranks import folded, local_ids
from tests.support.samples import named
from tests.support.shares import prepare

EDGES = np.random.default_rng(5).integers(0, 40, (2, 160))
PARTS = np.arange(40) % 3
LINE = Topology(
    name="line",
    devices=tuple(Device(f"device{rank}") for rank in range(3)),
    connections=tuple(
        Connection(f"wire{rank}", "wire", f"device{rank}", f"device{rank + 1}", 1.0) for rank in (0, 1)
    ),
)


def given_on_rank_0(value: Any) -> Any:
    return value if context.require_control().rank == 0 else None


def build(graph: Any = EDGES, topology: Any = "uniform", **options: Any) -> dgcl.Communicator:
    return dgcl.build_comm_info(given_on_rank_0(graph), topology, **options)


def check_exchange(comm: dgcl.Communicator):
    assert torch.equal(comm.expand(comm.owned_ids), local_ids(comm))
    rows = torch.arange(comm.num_local * 2).view(-1, 2)
    assert torch.equal(comm.fold(rows), folded(comm, rows))


@pytest.mark.parametrize(
    "topology, method",
    [
        *((topology, method) for topology in ("uniform", "dgx1") for method in METHODS),
        *(
            (LINE, method) for method in ("auto", "optimal", "spst")
        ),  # the others want a link between the ends
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_method_moves_the_planned_bytes(topology: Any, method: str):
    def run():
        comm = build(topology=topology, part=PARTS, method=method)
        check_exchange(comm)
        trees = comm.plan.trees
        leaving = trees.edge_src == comm.rank
        rows = int(np.repeat(trees.tree_count, np.diff(trees.edge_ptr))[leaving].sum())
        assert comm.bytes_sent["expand"].sum() == 8 * rows
        assert comm.plan.method == method

    dgcl.launch(run, 3)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("partition", ["metis", "random", "range"])
def test_every_partition_covers_the_graph(world_size: int, partition: str):
    def run() -> list[int]:
        comm = build(partition=partition)
        check_exchange(comm)
        return comm.owned_ids.tolist()

    parts = dgcl.launch(run, world_size)
    assert sorted(vertex for part in parts for vertex in part) == list(range(40))


def test_a_given_part_is_kept():
    def run():
        comm = build(part=torch.from_numpy(PARTS))
        assert comm.owned_ids.tolist() == np.flatnonzero(comm.rank == PARTS).tolist()

    dgcl.launch(run, 3)


def test_building_twice_gives_the_same():
    def run() -> list[Any]:
        comm = build(topology="dgx1")
        trees = comm.plan.trees
        return [comm.owned_ids, comm.halo_ids, torch.tensor(trees.edge_src), torch.tensor(trees.edge_stage)]

    for first, second in zip(dgcl.launch(run, 4), dgcl.launch(run, 4), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_preparing_needs_no_ranks():
    shares = prepare(EDGES, 3, LINE, part=PARTS)
    assert [share.exchanges[0].program.rank for share in shares] == [0, 1, 2]
    assert all(share.sizes == (40, 160) for share in shares)
    assert sum(share.local.num_edges for share in shares) == 160


# Mistakes: made on rank 0, heard on all.

TWO_DEVICES = Topology("two", (Device("a"), Device("b")), (Connection("w", "wire", "a", "b", 1.0),))
APART = Topology("apart", (Device("a"), Device("b"), Device("c")), (Connection("w", "wire", "a", "b", 1.0),))
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no graph": ({"graph": None}, ValueError, r"graph must be given on rank 0 \(got None\)"),
    "not a graph": ({"graph": 7}, TypeError, "graph"),
    "negative vertex": ({"graph": np.array([[0, -1], [1, 0]])}, ValueError, "-1"),
    "no such file": ({"graph": "no/such/graph.npz"}, OSError, "no/such/graph.npz"),
    "part too short": ({"part": PARTS[:7]}, ValueError, "part"),
    "part out of range": ({"part": PARTS + 1}, ValueError, "part"),
    "no such partition": (
        {"partition": "best"},
        ValueError,
        r"partition must be one of auto, .* \(got 'best'\)",
    ),
    "no such method": ({"method": "spts"}, ValueError, "did you mean 'spst'"),
    "no such topology": ({"topology": "dgx9"}, ValueError, "dgx9"),
    "too few devices": ({"topology": TWO_DEVICES}, ValueError, "3"),
    "devices apart": ({"topology": APART, "part": PARTS}, ValueError, "c"),
    "plan of the wrong type": ({"plan": 0.5}, TypeError, "plan must be a dgcl.PlanOptions"),
}


#: Options of a plan, which every rank looks at itself.
SEEN_BY_ALL = {"plan of the wrong type", "no such partition"}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_on_rank_0_are_heard_on_all(mistake: str):
    options, kind, text = MISTAKES[mistake]

    def run():
        with pytest.raises(kind, match=text) as raised:
            build(**options)
        heard = mistake not in SEEN_BY_ALL and context.require_control().rank > 0
        assert str(raised.value).endswith("(on rank 0)") == heard
        check_exchange(build())  # and the ranks can go on

    dgcl.launch(run, 3)


def test_no_timeout_is_an_error_on_the_rank_that_gives_it():
    def run():
        with pytest.raises(ValueError, match=r"timeout must be a positive number of seconds \(got 0\)"):
            build(timeout=0)

    dgcl.launch(run, 2)


@named(
    "graph",
    {
        "edge_index": torch.from_numpy(EDGES),
        "Graph": Graph(3, np.array([0, 1, 1, 2]), np.array([2, 0], np.int32), None),
        "csr": (np.array([0, 2, 3, 3]), np.array([1, 2, 0])),
    },
)
def test_graphs_of_several_kinds(graph: Any):
    dgcl.launch(lambda: check_exchange(build(graph)), 2)


def test_fewer_vertices_than_ranks():
    def run() -> int:
        comm = build(np.array([[0, 1], [1, 0]]))
        check_exchange(comm)
        return comm.num_owned

    assert sorted(dgcl.launch(run, 4)) == [0, 0, 1, 1]


# Groups of processes.


def on_part_of_the_group() -> list[int] | None:
    """Ranks 3 and 1 of four, in this order: ranks of the group are not ranks of the world."""
    rank = dist.get_rank()
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        with pytest.raises(ValueError, match="group: this process is not a member"):
            dgcl.init(group)
        dist.barrier()
        return None
    joined = context.control
    try:
        dgcl.init(group)
        comm = build(EDGES)
        assert (comm.rank, comm.world_size) == ((1, 3).index(rank), 2)
        check_exchange(comm)
        features = torch.arange(80.0).view(40, 2)
        rows = dgcl.dispatch_features(given_on_rank_0(features))
        assert torch.equal(rows, features[comm.owned_ids])
        collected = dgcl.collect(rows, dst=1)
        assert (collected is not None) == (comm.rank == 1)
        assert collected is None or torch.equal(collected, features)
        assert torch.equal(comm.all_reduce_sum(torch.tensor([comm.rank + 1])), torch.tensor([3]))
        owned = comm.owned_ids.tolist()
        comm.close()
    finally:
        context.control = joined
    dist.barrier()
    return owned


def test_a_group_within_a_larger_world(rank_pool: Callable[[int], RankPool]):
    zero, one, two, three = rank_pool(4).run(on_part_of_the_group)
    assert zero is None
    assert two is None
    assert sorted([*one, *three]) == list(range(40))


def mistake_in_a_process():
    with pytest.raises(ValueError, match=r"did you mean 'spst'"):
        build(method="spts")
    with pytest.raises(OSError, match="no/such"):
        build(graph="no/such/graph.npz")
    check_exchange(build())
    dgcl.current_communicator().close()


def test_mistakes_on_rank_0_cross_processes(rank_pool: Callable[[int], RankPool]):
    rank_pool(3).run(mistake_in_a_process)


def test_the_log_says_what_was_built(caplog):
    with caplog.at_level("INFO", logger="dgcl"):
        prepare(EDGES, 3, LINE, part=PARTS)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "40 vertices, 160 edges on 3 ranks of line: plan 'auto' with" in line


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dgcl.launch(lambda: check_exchange(build()), 2)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_rank_0_plans_is_not_waited_for():
    left: list[str] = []

    class Recorder(SingleControl):
        def leave(self, why: str):
            left.append(why)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    context.control = Recorder()
    try:
        with pytest.raises(KeyboardInterrupt):
            building.connect(interrupted, 1.0)
    finally:
        context.control = None
    assert left == ["was stopped by KeyboardInterrupt in connect"]


def test_ranks_that_cannot_be_joined_leave_though_their_errors_are_kept(
    monkeypatch,
):
    """Errors keep frames alive, and these the communicator that was being made, with its threads and connections."""
    left: list[Peers] = []

    def close(peers: Peers, own: Any = Peers.close):
        left.append(peers)
        own(peers)

    def refuse(control: Any, *arguments: Any):
        raise dgcl.CommError("there is no way to the other devices")

    def attempt() -> BaseException:
        with pytest.raises(dgcl.CommError, match="no way to the other devices") as raised:
            build(part=PARTS, channel="collective")
        return raised.value

    monkeypatch.setattr("dgcl.transport.connect.open_wire", refuse)
    monkeypatch.setattr(Peers, "close", close)
    errors = dgcl.launch(attempt, 3)
    assert len(errors) == len({id(peers) for peers in left}) == 3


def test_a_rank_that_cannot_connect_is_named_on_all(monkeypatch):
    def connect(peers: Peers, *arguments: Any) -> Any:
        if peers.rank == 1:
            raise RuntimeError("no descriptors are left")
        return open_wire(peers, *arguments)

    def attempt() -> BaseException:
        with pytest.raises((RuntimeError, dgcl.CommError), match="no descriptors are left") as raised:
            build(part=PARTS, channel="collective")
        return raised.value

    monkeypatch.setattr("dgcl.transport.connect.open_wire", connect)
    mine, own, other = dgcl.launch(attempt, 3)
    assert not isinstance(own, dgcl.CommError)
    assert all("rank 1 was stopped by RuntimeError" in str(error) for error in (mine, other))
