import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import dgcl
from dgcl.communicator import Communicator
from dgcl.ranks.context import context
from tests.support.plans import make_world, random_world
from tests.support.rank_pool import RankPool
from tests.support.ranks import join, local_ids, on_threads, random_bits, same_bits
from tests.support.samples import named

WORLD = random_world(31, 3, "line", num_nodes=20, num_edges=70)
EMPTY = random_world(32, 4, "random-1", num_nodes=20, num_edges=70, empty=(0, 2))
FEW = make_world([(0, 1)], [0, 1], 2)
worlds = named("world", {"line": WORLD, "empty parts": EMPTY})

# What is where.


@worlds
def test_ids_and_sizes_are_those_of_the_partition(world: Any):
    def run(comm: Communicator) -> tuple[list[int], list[int]]:
        assert (comm.num_nodes, comm.num_edges) == (20, 70)
        assert comm.world_size == world.world_size
        assert (comm.num_owned, comm.num_halo) == (len(comm.owned_ids), len(comm.halo_ids))
        assert comm.num_local == comm.num_owned + comm.num_halo
        assert comm.owned_ids.dtype == comm.halo_ids.dtype == torch.int64
        assert comm.plan is world.plan
        assert str(comm.rank) in repr(comm)
        return comm.owned_ids.tolist(), comm.halo_ids.tolist()

    graph = nx.DiGraph()
    graph.add_nodes_from(range(20))
    for v in range(20):
        first, last = world.graph.indptr[v : v + 2]
        graph.add_edges_from((int(u), v) for u in world.graph.indices[first:last])
    for rank, (owned, halo) in enumerate(on_threads(world, run)):
        assert owned == np.flatnonzero(world.part == rank).tolist()
        read = {u for v in owned for u in graph.predecessors(v)}
        assert set(halo) == read - set(owned)
        assert len(set(halo)) == len(halo)


# What a caller may get wrong. Every rank makes the same mistake here, and nobody is left waiting.

MISTAKES: dict[str, tuple[Callable[[Communicator], Any], type[Exception], str]] = {
    "expand: too few rows": (
        lambda comm: comm.expand(torch.zeros(comm.num_owned + 1, 3)),
        ValueError,
        r"rows must have num_owned = 1 rows on rank 0 \(got shape \(2, 3\)\); dispatch_features gives",
    ),
    "fold: owned rows only": (
        lambda comm: comm.fold(torch.zeros(7)),
        ValueError,
        r"rows must have num_owned \+ num_halo = 1 rows on rank 0 \(got shape \(7,\)\)",
    ),
    "no rows": (lambda comm: comm.expand(torch.zeros(())), ValueError, r"got shape \(\)"),
    "no tensor": (
        lambda comm: comm.expand(np.zeros((1, 3))),
        TypeError,
        "rows must be a torch tensor .got ndarray",
    ),
    "another device": (
        lambda comm: comm.expand(torch.zeros(1, device="meta")),
        ValueError,
        r"rows must be on the CPU, .* \(got meta\); move them",
    ),
    "sparse": (
        lambda comm: comm.expand(torch.zeros(1, 3).to_sparse()),
        ValueError,
        r"rows must be a dense tensor \(got torch.sparse_coo\); call .to_dense",
    ),
    "fold of truth values": (
        lambda comm: comm.fold(torch.zeros(comm.num_local, dtype=torch.bool)),
        TypeError,
        "rows: torch.bool rows cannot be summed; convert them to a wider type first",
    ),
    "fold of unsigned": (
        lambda comm: comm.fold(torch.zeros(comm.num_local, dtype=torch.uint32)),
        TypeError,
        "rows: torch.uint32 rows cannot be summed",
    ),
    "collect: not the owned rows": (
        lambda comm: comm.collect(torch.zeros(5)),
        ValueError,
        r"rows must have num_owned = 1 rows on rank 0 \(got shape \(5,\)\)",
    ),
    "collect: no such rank": (
        lambda comm: comm.collect(torch.zeros(1), dst=2),
        ValueError,
        r"dst must be a rank below 2 or None \(got 2\)",
    ),
    "dispatch: nothing": (
        lambda comm: comm.dispatch_features(None),
        ValueError,
        r"features must be given on rank 0 \(got None there\)",
    ),
    "dispatch: too many rows": (
        lambda comm: comm.dispatch_features(torch.zeros(3, 4)),
        ValueError,
        r"features must have one row for each of the 2 vertices \(got shape \(3, 4\)\); if the last vertices"
        r" have no edges, .* dgcl\.graph\.as_graph\(edge_index, num_nodes=3\), on rank 0",
    ),
    "dispatch: a scalar": (lambda comm: comm.dispatch_features(5.0), ValueError, "features must have rows"),
    "dispatch: ragged": (
        lambda comm: comm.dispatch_features([[1, 2], [3]]),
        ValueError,
        "features cannot be made a tensor: .*inhomogeneous",
    ),
    "dispatch: objects": (
        lambda comm: comm.dispatch_features(np.array(["a", None])),
        ValueError,
        "features cannot be made a tensor: .*object",
    ),
    "dispatch: sparse": (
        lambda comm: comm.dispatch_features(torch.zeros(2, 2).to_sparse()),
        ValueError,
        r"features must be dense \(got torch.sparse_coo; call .to_dense",
    ),
    "dispatch: edges for vertices": (
        lambda comm: comm.dispatch_edges(torch.zeros(2)),
        ValueError,
        r"values must have one row for each of the 1 edges \(got shape \(2,\)\), on rank 0",
    ),
    "local graph of no framework": (
        lambda comm: comm.local_graph("jax"),
        ValueError,
        "kind must be one of dgl, pyg, csr .got 'jax'",
    ),
}


@named("mistake, kind, text", MISTAKES)
def test_mistakes_are_named_with_what_was_given(
    mistake: Callable[[Communicator], Any], kind: type[Exception], text: str
):
    def run(comm: Communicator):
        with pytest.raises(kind, match=text) if comm.rank == 0 else pytest.raises(kind):
            mistake(comm)
        assert torch.equal(comm.expand(comm.owned_ids), local_ids(comm)), (
            "the communicator is as good as before"
        )

    on_threads(FEW, run)


@named(
    "mistake",
    {
        "collect rows": lambda comm, bad: comm.collect(torch.zeros(comm.num_owned + bad)),
        "collect width": lambda comm, bad: comm.collect(torch.zeros(comm.num_owned, 1 + bad)),
        "dispatch rows": lambda comm, bad: comm.dispatch_features(torch.zeros(comm.num_nodes + bad, 2)),
        "dispatch width": lambda comm, bad: comm.dispatch_features(torch.zeros(comm.num_nodes, 2 + bad)),
        "dispatch dtype": lambda comm, bad: comm.dispatch_features(
            torch.zeros(comm.num_nodes, dtype=(torch.int, torch.int8)[bad])
        ),
        "ragged edges": lambda comm, bad: comm.dispatch_edges(
            [[1], [2, 3]] if bad else torch.zeros(comm.num_edges)
        ),
    },
)
def test_a_mistake_of_one_rank_is_an_error_on_all(mistake: Callable[[Communicator, int], Any]):
    def run(comm: Communicator):
        with pytest.raises(ValueError, match=r"on rank 1|on every rank"):
            mistake(comm, int(comm.rank == 1))

    on_threads(WORLD, run)


# Rows of the whole graph in and out.

GIVEN: dict[str, Callable[[], Any]] = {
    "float32": lambda: torch.randn(20, 7),
    "one column": lambda: torch.arange(20),
    "three dimensions": lambda: torch.arange(20 * 6).view(20, 2, 3),
    "no columns": lambda: torch.zeros(20, 0),
    "bfloat16": lambda: torch.randn(20, 3).bfloat16(),
    "truth values": lambda: torch.arange(20) % 3 == 0,
    "not contiguous": lambda: torch.arange(60).view(3, 20).t(),
    "needs gradients": lambda: torch.randn(20, 2, requires_grad=True),
    "numpy": lambda: np.random.default_rng(0).random((20, 3)),
    "numpy backwards": lambda: np.arange(40).reshape(20, 2)[::-1],
    "numpy read-only": lambda: np.broadcast_to(np.arange(5.0), (20, 5)),
    "list": lambda: [[i, i + 1] for i in range(20)],
}


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("error")
@named("everywhere", {"rank 0": False, "every rank": True})
@named("given", GIVEN)
@worlds
def test_dispatched_features_are_the_owners_rows(world: Any, given: Callable[[], Any], everywhere: bool):
    torch.manual_seed(0)
    features = given()
    full = torch.as_tensor(
        np.array(features) if not isinstance(features, torch.Tensor) else features.detach()
    )

    def run(comm: Communicator):
        rows = comm.dispatch_features(features if everywhere or comm.rank == 0 else None)
        assert same_bits(rows, full[comm.owned_ids])
        assert not rows.requires_grad
        with_halo = comm.dispatch_features(features if everywhere or comm.rank == 0 else None, halo=True)
        assert same_bits(with_halo, full[local_ids(comm)])

    on_threads(world, run)


def test_dispatched_rows_are_copies():
    def run(comm: Communicator):
        rows = comm.dispatch_features(features)
        comm.control.barrier()
        rows.fill_(-1)
        comm.control.barrier()
        assert torch.equal(features, torch.arange(20.0))

    features = torch.arange(20.0)
    on_threads(WORLD, run)


@named("everywhere", {"rank 0": False, "every rank": True})
@worlds
def test_dispatched_edge_values_belong_to_the_local_edges(world: Any, everywhere: bool):
    """Each edge's value encodes its ends."""
    sources, heads = edges_of(world)
    values = sources * 100 + heads

    def run(comm: Communicator) -> int:
        mine = comm.dispatch_edges(values if everywhere or comm.rank == 0 else None)
        ids = local_ids(comm)
        local = comm.local
        assert torch.equal(mine, ids[local.indices] * 100 + comm.owned_ids[local.heads])
        return len(mine)

    assert sum(on_threads(world, run)) == 70


def edges_of(world: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(sources, heads) in the order in which the user gave the edges."""
    graph = world.graph
    heads = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    order = np.arange(graph.num_edges) if graph.edge_ids is None else np.argsort(graph.edge_ids)
    return torch.from_numpy(graph.indices[order].astype(np.int64)), torch.from_numpy(heads[order])


@named("dst", {"rank 0": 0, "rank 2": 2, "everywhere": None})
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)], ids=str)
@worlds
def test_collected_rows_are_in_global_order(world: Any, shape: tuple[int, ...], dst: int | None):
    full = random_bits((20, *shape), torch.int32)

    def run(comm: Communicator):
        result = comm.collect(full[comm.owned_ids], dst)
        if dst is None or dst == comm.rank:
            assert result is not None
            assert same_bits(result, full)
        else:
            assert result is None

    on_threads(world, run)


def test_collected_rows_are_those_of_the_call():
    """A rank may write to its rows as soon as its call has returned."""

    def run(comm: Communicator):
        for step in range(50):
            rows = (comm.owned_ids * 1000 + step).repeat_interleave(500).view(-1, 500)
            result = comm.collect(rows)
            rows.fill_(-1)
            if result is not None:
                assert torch.equal(result[:, 0], torch.arange(20) * 1000 + step)

    on_threads(WORLD, run)


@pytest.mark.parametrize("dst", [0, 1, None])
def test_rows_are_collected_into_a_file(tmp_path, dst: int | None):
    full = torch.randn(20, 3)
    file = tmp_path / "out.npy"

    def run(comm: Communicator):
        assert comm.collect(full[comm.owned_ids], dst, file=file) is None
        assert np.array_equal(np.load(file), full.numpy()), "written when the call returns, on any rank"

    on_threads(WORLD, run)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


@named(
    "rows, name, text",
    {
        "no folder": (torch.zeros(20, 2), "no/such/folder/out.npy", "No such file or directory"),
        "no such type in numpy": (torch.zeros(20, 2).bfloat16(), "out.npy", "BFloat16"),
    },
)
def test_a_file_that_cannot_be_written_is_an_error_on_every_rank(
    tmp_path, rows: torch.Tensor, name: str, text: str
):
    def run(comm: Communicator):
        with pytest.raises(ValueError, match=f"file: cannot write .*{text}"):
            comm.collect(rows[comm.owned_ids], file=tmp_path / name)

    on_threads(WORLD, run)
    assert not list(tmp_path.iterdir())


def through_processes():
    """In and out between processes, which copy instead of sharing."""
    comm = join(WORLD.shares())
    full = torch.arange(60.0).view(20, 3)
    rows = dgcl.dispatch_features(full if comm.rank == 0 else None)
    assert torch.equal(rows, full[comm.owned_ids])
    sources, heads = edges_of(WORLD)
    mine = comm.dispatch_edges(sources if comm.rank == 0 else None)
    assert torch.equal(mine, local_ids(comm)[comm.local.indices])
    collected = dgcl.collect(rows * 2)
    assert (collected is None) == (comm.rank != 0)
    assert collected is None or torch.equal(collected, full * 2)
    everywhere = dgcl.collect(rows, dst=None)
    assert torch.equal(everywhere, full)
    with pytest.raises(ValueError, match="trailing shape and dtype of rows must be the same on every rank"):
        dgcl.collect(rows[:, comm.rank :])
    assert heads is not None
    comm.close()


def test_rows_in_and_out_among_processes(rank_pool: Callable[[int], RankPool]):
    rank_pool(3).run(through_processes)


# Life and death.


def test_close_may_be_called_twice_and_later_calls_say_so():
    def run(comm: Communicator):
        comm.expand(comm.owned_ids)
        out = comm.expand_async(torch.zeros(comm.num_owned, requires_grad=True)).wait()
        comm.close()
        comm.close()
        with pytest.raises(ValueError, match="this communicator is closed"):
            out.sum().backward()
        for verb, rows in ((comm.expand, comm.num_owned), (comm.fold, comm.num_local)):
            with pytest.raises(
                ValueError, match=f"rank {comm.rank}: this communicator is closed; build a new one"
            ):
                verb(torch.zeros(rows))
        assert (comm.bytes_sent["expand"] >= 0).all()

    on_threads(WORLD, run)


def test_close_gives_the_memory_of_rows_back_but_for_that_of_results_in_use():
    def mapped(inode: int) -> int:
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        spans = [line[0].split("-") for line in lines if line[4] == str(inode)]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    def run(comm: Communicator):
        inode = os.fstat(comm.transport.runtime.pool._file.handle[1]).st_ino
        kept = comm.expand(comm.owned_ids)
        comm.expand(torch.zeros(comm.num_owned, 400_000))
        comm.control.barrier()
        assert mapped(inode) > 4e6
        comm.close()
        comm.control.barrier()
        assert mapped(inode) < 3e6
        assert torch.equal(kept, torch.cat([comm.owned_ids, comm.halo_ids]))

    on_threads(WORLD, run)


def test_a_forgotten_communicator_closes_itself():
    def run():
        comm = join(shares)
        descriptor = comm.transport.runtime.pool._file.handle[1]
        comm.control.barrier()
        assert "memfd:dgcl" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
        context.communicator = None
        comm.control.barrier()
        control_page, control = comm.transport.runtime.peers.page, comm.control
        del comm
        gc.collect()
        assert control_page.state == 2
        control.barrier()

    shares = WORLD.shares()
    dgcl.launch(run, 3)


def test_a_fork_neither_uses_nor_closes_the_communicator():
    """Data loaders fork; what dies with a worker must not be taken for the rank."""

    def run(comm: Communicator):
        pid = os.fork()
        if pid == 0:
            try:
                comm.expand(comm.owned_ids)
                os._exit(1)
            except ValueError as error:
                comm.fail("in a fork")
                comm.close()
                os._exit(2 if "a fork of the rank's process" in str(error) else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        comm.control.barrier()
        assert torch.equal(comm.expand(comm.owned_ids), local_ids(comm))

    on_threads(WORLD, run)


def test_nothing_stays_open_or_mapped():
    def run(comm: Communicator):
        x = torch.ones(comm.num_owned, 50, requires_grad=True)
        dgcl.graph_allgather(x).sum().backward()

    on_threads(WORLD, run)
    gc.collect()
    before = resources()
    for _ in range(3):
        on_threads(WORLD, run)
    gc.collect()
    assert resources() == before


def resources() -> tuple[int, int]:
    """Open files and mappings of ours."""
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:dgcl" in line for line in maps)
    return len(list(Path("/proc/self/fd").iterdir())), mapped


def test_verbs_use_the_communicator_built_last_in_this_thread():
    shares = WORLD.shares()

    def run():
        with pytest.raises(ValueError, match="call dgcl"):
            dgcl.current_communicator()
        first = join(shares)
        assert dgcl.current_communicator() is first
        second = join(shares)
        assert dgcl.current_communicator() is second
        assert torch.equal(dgcl.graph_allgather(first.owned_ids, comm=first), local_ids(first))
        first.close()
        assert torch.equal(dgcl.graph_allgather(second.owned_ids), local_ids(second))

    dgcl.launch(run, 3)


def test_verbs_before_init_say_what_to_call(monkeypatch):
    monkeypatch.setattr(context, "control", None)  # tests before this one may have begun
    with pytest.raises(ValueError, match=r"call dgcl\.init\(\) first"):
        dgcl.build_comm_info(None)
