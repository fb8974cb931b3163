"""Streamed edges: aggregations equal those of one device, and each rank keeps its share of its group's edges.

==========================  =========================================================================================
what                        judged by
==========================  =========================================================================================
sums, means, gradients      ``A @ x`` in float64, A dense, and autograd through it
normalised sums             the same with D^-1/2 (A + I) D^-1/2
a toy graph, training       loss and norms of an independent program; a dense product with dropout and norms
edges kept                  the list of edges, sorted by hand: each once in its group, shares of one size
bytes, windows held         counts of blocks; references to the memory of windows that were summed
more than 2**24 vertices    the heads and tails of the edges, one by one
==========================  =========================================================================================
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.errors import CommError
from dgcl.graph import Graph
from dgcl.grid.grid import Grid, legal_grids
from dgcl.grid.needs import NEEDS, find_needs
from dgcl.grid.streamed import StreamedGraph, block_demand, edges_of_block
from dgcl.program.exchange import EDGES, HALO, PARTIAL
from tests.dgcl.aggregation.test_aggregator import (
    CASE_BY_NAME,
    EXACT,
    TOY,
    aggregated,
    assert_close,
    dense,
    expected,
    features,
)
from tests.dgcl.awkward import Case
from tests.dgcl.grid.test_aggregation import (
    size_of,
    train_the_toy,
    train_with_dropout,
    with_dropout_on_one_device,
)
from tests.dgcl.grid.test_items import problems
from tests.samples import sampled

GRIDS = [str(grid) for size in (2, 3, 4, 5, 6, 8, 9, 12, 16) for grid in legal_grids(size) if grid.slices > 1]
#: What runs every day, with every third graph.
DAILY = ("1,1,2", "1,1,3", "1,2,2", "2,1,2")


def connect(case: Case, grid: str, **options: Any) -> dgcl.Communicator:
    asked = dgcl.GridOptions(grid, options.pop("needs", "sparse"), adjacency="streamed")
    options = {"method": "direct", **options}
    return dgcl.build_comm_info(case.graph, "uniform", part=case.part(size_of(grid)), grid=asked, **options)


def on_rank(name: str, grid: str, method: str = "direct", needs: str = "sparse") -> list[dict[str, Tensor]]:
    case = CASE_BY_NAME[name]
    comm = connect(case, grid, method=method, needs=needs)
    assert comm.edges == "streamed"
    return [aggregated(comm, case, reduce, "") for reduce in ("sum", "mean")]


def assert_dense(found: list[list[dict[str, Tensor]]], name: str) -> None:
    for of_rank in found:
        for each, reduce in zip(of_rank, ("sum", "mean"), strict=True):
            assert_close(each, expected(name, reduce, ""))


@pytest.mark.parametrize(
    ("grid", "name"),
    sampled(GRIDS, CASE_BY_NAME, keep=lambda grid, case: GRIDS[grid] in DAILY and (grid + case) % 3 == 0),
)
def test_equals_the_dense_product(grid: str, name: str) -> None:
    assert_dense(dgcl.launch(on_rank, size_of(grid), name, grid), name)


@pytest.mark.parametrize("needs", NEEDS)
def test_blocks_that_pass_through_other_ranks(needs: str) -> None:
    assert_dense(dgcl.launch(on_rank, 6, "multi-edges", "1,2,3", "ring", needs), "multi-edges")


def test_between_processes(rank_pool: Any) -> None:
    assert_dense(rank_pool(3).run(on_rank, "multi-edges", "1,1,3"), "multi-edges")


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2", "2,2,2", pytest.param("2,5,3", marks=pytest.mark.slow)])
def test_the_toy_graph(grid: str) -> None:
    for found in dgcl.launch(train_the_toy, size_of(grid), grid, "streamed"):
        assert found == pytest.approx(TOY, rel=1e-12)


@pytest.mark.parametrize("grid", ["1,1,3", pytest.param("2,2,2", marks=pytest.mark.slow)])
def test_training_with_dropout_and_norms(grid: str) -> None:
    losses, parameters = with_dropout_on_one_device()
    for found, theirs in dgcl.launch(train_with_dropout, size_of(grid), grid, "streamed"):
        assert found == pytest.approx(losses, rel=EXACT)
        for one, other in zip(theirs, parameters, strict=True):
            torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def normalised(grid: str, loops: bool, windows: int | None) -> dict[str, Tensor]:
    case = CASE_BY_NAME["self-loops"]
    comm = connect(case, grid)
    conv = dgcl.nn.GCNConv(5, 5, bias=False, add_self_loops=loops).double()
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(5))
    if windows is not None:
        stack = dgcl.nn.InPlaceGCN([5, 5], bias=False, add_self_loops=loops, windows=windows).double()
        with torch.no_grad():
            next(stack.parameters()).copy_(torch.eye(5))
        conv = stack  # type: ignore[assignment]
    x = comm.dispatch_features(features(case.num_nodes, 5)).requires_grad_()
    y = conv(x)
    (y * comm.dispatch_features(features(case.num_nodes, 5, seed=3))).sum().backward()
    return {"y": comm.collect(y.detach(), None), "x": comm.collect(x.grad, None)}


@pytest.mark.parametrize(("loops", "windows"), [(True, None), (False, None), (True, 3)])
@pytest.mark.parametrize("grid", ["1,1,3", "1,2,2"])
def test_symmetric_normalisation(grid: str, loops: bool, windows: int | None) -> None:
    case = CASE_BY_NAME["self-loops"]
    matrix = dense(case, "sum", None)
    if loops:
        matrix.fill_diagonal_(1)
    degrees = matrix.sum(1)
    scale = torch.where(degrees > 0, degrees.rsqrt(), 0)
    matrix = scale[:, None] * matrix * scale
    wanted = {"y": matrix @ features(case.num_nodes, 5), "x": matrix.T @ features(case.num_nodes, 5, seed=3)}
    for found in dgcl.launch(normalised, size_of(grid), grid, loops, windows):
        assert_close(found, wanted)


def kept_edges(case: Case, grid: str) -> tuple[list[tuple[int, int]], int, int]:
    """Those that this rank keeps, by the ids of vertices; how many it sums; and bytes that it states."""
    comm = connect(case, grid)
    local, slices = comm.local, comm.grid.slices
    assert isinstance(local, StreamedGraph)
    heads, tails = local.rows_of(local.blocks)
    assert len(heads) == local.num_edges
    of_heads = np.concatenate([local.owned_ids, local.partial_ids])[heads]
    of_tails = local.local_ids[tails]
    assert (of_heads % slices == comm.rank % slices).all()
    assert (of_tails % slices == comm.rank % slices).all()
    pairs = list(zip((of_tails // slices).tolist(), (of_heads // slices).tolist(), strict=True))
    return pairs, local.group_edges, comm.memory([5]).edges


@pytest.mark.parametrize("grid", ["1,1,4", "2,1,2", "1,2,3", "2,2,2"])
def test_each_edge_of_a_group_is_kept_once_in_shares_of_one_size(grid: str) -> None:
    case, shape = CASE_BY_NAME["multi-edges"], Grid(*map(int, grid.split(",")))
    part = case.part(shape.size)
    found = dgcl.launch(kept_edges, shape.size, case, grid)
    in_block = edges_of_block(find_needs(case.graph, part.astype(np.int32), shape))
    for first in range(0, shape.size, shape.slices):
        group = found[first : first + shape.slices]
        wanted = [
            (u, v)
            for u, v in case.edges.T.tolist()
            if part[v] // (shape.depth * shape.slices) == first // (shape.depth * shape.slices)
            and part[u] // shape.slices % shape.depth == first // shape.slices % shape.depth
        ]
        assert Counter(pair for pairs, _, _ in group for pair in pairs) == Counter(wanted)
        for pairs, summed, stated in group:
            assert summed == len(wanted)
            assert abs(len(pairs) - len(wanted) / shape.slices) < 2 * in_block
            tables = len({u for u, _ in wanted}) + len({v for _, v in wanted})
            assert stated <= 2 * 8 * (len(wanted) / shape.slices + 2 * in_block) + 4 * tables


def test_the_toy_graph_keeps_half_of_what_it_sums() -> None:
    toy = Case("toy", np.stack(_edges_of_toy()), 24, np.ones(24, bool), in_blocks=True)
    for pairs, summed, _ in dgcl.launch(kept_edges, 4, toy, "2,1,2"):
        assert (len(pairs), summed) == (18, 36)


def _edges_of_toy() -> tuple[np.ndarray, np.ndarray]:
    u = np.arange(24)
    pairs = {(int(a), int(b)) for a in u for b in ((a + 1) % 24, (5 * a + 2) % 24, a)}
    assert len(pairs) == 72
    tails, heads = np.array(sorted(pairs)).T
    return tails, heads


@given(problems())
def test_blocks_go_to_the_other_ranks_of_the_group(problem: tuple[Graph, np.ndarray, Grid, str]) -> None:
    """Who keeps and who wants each block, and that shares differ by one."""
    graph, owner, grid, asked = problem
    needs = find_needs(graph, owner, grid, asked)
    demand, in_block = block_demand(needs), edges_of_block(needs)
    num_blocks = -(-needs.edges.ravel() // in_block)
    kept = np.bincount(demand.owner, minlength=grid.size).reshape(-1, grid.slices)
    assert (kept.sum(1) == num_blocks).all()
    assert (kept.max(1) - kept.min(1) <= 1).all()
    for rank in range(grid.size):
        others = [other for other in _group(grid, rank) if other != rank]
        assert (demand.wanted_by(rank) == np.flatnonzero(np.isin(demand.owner, others))).all()


def _group(grid: Grid, rank: int) -> range:
    first = rank - rank % grid.slices
    return range(first, first + grid.slices)


def moved(grid: str, adjacency: str, windows: int | None) -> tuple[dict[str, Tensor], dict[str, int]]:
    case = CASE_BY_NAME["hub"]
    options = dgcl.GridOptions(grid, adjacency=adjacency)
    comm = dgcl.build_comm_info(
        case.graph, "uniform", part=case.part(size_of(grid)), grid=options, method="direct"
    )
    found = aggregated(comm, case, "mean", "", windows=windows)
    sent = {}
    for name in comm.exchanges:
        sent[name] = int(sum(each.sum() for each in comm.bytes_sent_by(name).values()))
    return found, sent


@pytest.mark.parametrize("grid", ["1,1,3", "2,2,2"])
@pytest.mark.parametrize("windows", [None, 1, 5])
def test_bytes_are_those_of_the_blocks(grid: str, windows: int | None) -> None:
    """Of two aggregations, there and back; rows travel as where edges are held."""
    case, shape = CASE_BY_NAME["hub"], Grid(*map(int, grid.split(",")))
    needs = find_needs(case.graph, case.part(shape.size).astype(np.int32), shape)
    blocks, in_block = len(block_demand(needs).owner), edges_of_block(needs)
    streamed = dgcl.launch(moved, shape.size, grid, "streamed", windows)
    held = dgcl.launch(moved, shape.size, grid, "held", None)
    assert sum(sent[EDGES] for _, sent in streamed) == 4 * blocks * (shape.slices - 1) * 8 * in_block
    for (found, sent), (_, of_held) in zip(streamed, held, strict=True):
        assert {name: sent[name] for name in (HALO, PARTIAL)} == {
            name: of_held[name] for name in (HALO, PARTIAL)
        }
        assert_close(found, expected("hub", "mean", ""))


def windows_alive() -> list[int]:
    """How many windows' memory lives when the next one is begun, that one left out."""
    comm = connect(CASE_BY_NAME["hub"], "1,1,3")
    transport, arrived, alive = comm.transport, [], []
    begin = transport.begin_expand

    class Started:
        def __init__(self, started: Any) -> None:
            self.started = started

        def wait(self) -> Tensor:
            rows = self.started.wait()
            arrived.append(weakref.ref(rows.untyped_storage()))
            return rows

    def counted(rows: Tensor, exchange: int = 0, **options: Any) -> Any:
        alive.append(sum(each() is not None for each in arrived))
        return Started(begin(rows, exchange, **options))

    transport.begin_expand = counted  # type: ignore[method-assign]
    comm.aggregator(windows=6)(comm.dispatch_features(features(26, 3)))
    return alive


def test_two_windows_are_held_at_most() -> None:
    for alive in dgcl.launch(windows_alive, 3):
        assert len(alive) == 6
        assert max(alive) <= 1


def twice() -> list[bytes]:
    comm = connect(CASE_BY_NAME["hub"], "1,1,4")
    aggregate = comm.aggregator("mean")
    x = comm.dispatch_features(features(26, 33, dtype=torch.float32))
    return [aggregate(x).numpy().tobytes() for _ in range(3)]


def test_the_same_input_gives_the_same_bits() -> None:
    for first, *others in dgcl.launch(twice, 4):
        assert all(other == first for other in others)


def in_16_bits(dtype: torch.dtype) -> Tensor:
    case = CASE_BY_NAME["hub"]
    comm = connect(case, "1,2,2")
    x = comm.dispatch_features(features(case.num_nodes, 5).to(dtype) + 8000)
    return comm.collect(comm.aggregator("mean")(x), None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_in_16_bits_are_rounded_a_few_times_only(dtype: torch.dtype) -> None:
    case = CASE_BY_NAME["hub"]
    wanted = dense(case, "mean", None) @ (features(case.num_nodes, 5).to(dtype) + 8000).double()
    for found in dgcl.launch(in_16_bits, 4, dtype):
        torch.testing.assert_close(found.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=0)


def differentiate_twice() -> dict[str, Tensor]:
    case = CASE_BY_NAME["self-loops"]
    comm = connect(case, "1,1,3")
    x = comm.dispatch_features(features(case.num_nodes, 5)).requires_grad_()
    first = comm.aggregator()(x)
    (gradient,) = torch.autograd.grad((first**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((gradient**2).sum(), x)
    return {"second": comm.collect(second, None)}


def test_second_derivatives() -> None:
    case = CASE_BY_NAME["self-loops"]
    matrix = dense(case, "sum", None)
    x = features(case.num_nodes, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(((matrix @ x) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((gradient**2).sum(), x)
    for found in dgcl.launch(differentiate_twice, 3):
        assert_close(found, {"second": second})


def refusals() -> list[str]:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, "1,1,2")
    x, num_edges = comm.dispatch_features(features(26, 4)), comm.local.num_edges
    calls = [
        lambda: comm.aggregator(edge_weight=torch.ones(num_edges)),
        lambda: comm.aggregator(edge_weight=torch.ones(num_edges, requires_grad=True)),
        lambda: comm.aggregator("max"),
        lambda: comm.dispatch_edges(np.ones(case.edges.shape[1])),
        lambda: comm.slices(x),
        lambda: comm.slice_graph(),
        lambda: comm.local_graph(),
        lambda: comm.dispatch_features(features(26, 4), halo=True),
        lambda: dgcl.nn.dropout(torch.ones(num_edges, 1), 0.5, edges=True),
        lambda: dgcl.graph_allgather(x),
        lambda: comm.aggregator(windows=27),
    ]
    said = []
    for call in calls:
        try:
            call()
        except CommError:
            raise
        except (ValueError, TypeError) as error:
            said.append(str(error))
        else:
            said.append("nothing")
    return said


def test_what_needs_edges_is_refused() -> None:
    for said in dgcl.launch(refusals, 2):
        assert said[0] == said[1]
        assert said[0].startswith("edge_weight goes without adjacency='streamed': edges come and go")
        assert said[2].startswith("reduce='max' goes without adjacency='streamed'")
        for text in said[:8]:
            assert "build the communicator with adjacency='held'" in text.replace("Build", "build")
        assert said[8].startswith("edges=True needs all edges of whole rows")
        assert "adjacency='held'" in said[9]
        assert said[10] == "windows must be from 1 to 26, the rows that there are (got 27)"


def of_grid(grid: str, options: dict[str, Any]) -> tuple[str, str, Tensor]:
    case = CASE_BY_NAME["directed"]
    asked = dgcl.GridOptions(grid, **options)
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(4), grid=asked, method="direct")
    y = comm.aggregator()(comm.dispatch_features(features(26, 4)))
    return comm.edges, comm.describe(), comm.collect(y, None)


@pytest.mark.parametrize(
    ("grid", "edges"), [("4,1,1", "head"), ("2,2,1", "grid"), ("2,1,2", "streamed"), ("auto", None)]
)
def test_one_slice_has_nobody_to_share_edges_with(grid: str, edges: str | None) -> None:
    wanted = dense(CASE_BY_NAME["directed"], "sum", None) @ features(26, 4)
    for found, said, y in dgcl.launch(of_grid, 4, grid, {"adjacency": "streamed"}):
        assert edges in (found, None)
        assert ("edges are streamed: a rank sums" in said) == (found == "streamed")
        torch.testing.assert_close(y, wanted, rtol=EXACT, atol=EXACT)


def test_another_word_is_refused() -> None:
    def build() -> None:
        with pytest.raises(ValueError, match="adjacency must be one of held, streamed"):
            of_grid("1,1,4", {"adjacency": "stream"})

    dgcl.launch(build, 4)


def test_parts_of_streamed_edges_are_not_written(tmp_path: Any) -> None:
    from dgcl.grid.strategy import GridPlacement
    from dgcl.prepare.part_files import save_shares
    from dgcl.prepare.shares import prepare

    case, strategy = CASE_BY_NAME["directed"], GridPlacement(Grid(1, 1, 2), adjacency="streamed")
    shares = prepare(case.graph, 2, "uniform2", part=case.part(2), strategy=strategy, method="direct")
    with pytest.raises(ValueError, match="adjacency='streamed' goes without part files"):
        save_shares(tmp_path / "parts", shares)


MANY = 2**24 + 40


def of_many_vertices(graph: Graph, part: np.ndarray) -> tuple[dict[int, float], dict[int, float], int]:
    """The rows of sums that are not zero, and of the gradient; and the largest place in a block."""
    asked = dgcl.GridOptions("1,1,2", "all", adjacency="streamed")
    comm = dgcl.build_comm_info(graph, "uniform2", part=part, grid=asked, method="direct")
    ids = comm.owned_ids.double()
    x = torch.stack([ids, 2 * ids], 1).requires_grad_()
    y = comm.aggregator()(x)
    (y * y.detach()).sum().backward()
    found = []
    for rows in (y.detach(), x.grad):
        assert rows is not None
        assert (rows[:, 1] == 2 * rows[:, 0]).all()
        some = torch.nonzero(rows[:, 0])[:, 0]
        found.append(dict(zip(comm.owned_ids[some].tolist(), rows[some, 0].tolist(), strict=True)))
    assert isinstance(comm.local, StreamedGraph)
    return found[0], found[1], int(comm.local.blocks.max(initial=0))


@pytest.mark.matrix
def test_more_vertices_than_a_float_can_count() -> None:
    """Edges among neighbouring ids beyond 2**24, which float32 takes for each other; all vertices are numbered."""
    rng = np.random.default_rng(0)
    tails, heads = rng.integers(2**24 - 5, MANY, (2, 300))
    order = np.argsort(heads, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(heads, minlength=MANY))])
    graph = Graph(MANY, indptr, tails[order].astype(np.int32), None)
    part = (np.arange(MANY) % 2).astype(np.int32)
    y: Counter[int] = Counter()
    for u, v in zip(tails.tolist(), heads.tolist(), strict=True):
        y[v] += u
    gradient: Counter[int] = Counter()
    for u, v in zip(tails.tolist(), heads.tolist(), strict=True):
        gradient[u] += y[v]
    found = dgcl.launch(of_many_vertices, 2, graph, part)
    assert found[0][0] | found[1][0] == y
    assert found[0][1] | found[1][1] == gradient
    assert max(largest for _, _, largest in found) > 2**24
