"""Relations of grids, judged by sets: brute force over edges and slices, golden counts, closed formulas.

=====================  ==============================================================================================
what                   judged by
=====================  ==============================================================================================
numbering, legal ones  (part, depth, slice) counted by nested loops
demands and classes    for every edge and slice the rank that sums it; sets of (item, rank)
counts of ranks        golden numbers of the toy graph
everything needed      w n [1/(KS) - 1/(PS) + (KS - 1)/(PS)], of equal shares
=====================  ==============================================================================================
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph, as_graph
from dgcl.grid.grid import Grid, as_grid, dense_words, legal_grids
from dgcl.grid.items import expand_demand, fold_demand
from dgcl.grid.needs import Needs, find_needs
from tests.support.exchanges import in_ranges, pairs, sets_of, toy_24
from tests.support.grid_items import TOY, received

Pairs = set[tuple[int, int]]


def brute_force(graph: Graph, owner: np.ndarray, grid: Grid) -> tuple[Pairs, Pairs, list[int]]:
    """(item, rank) pairs of the expand and of the fold, and edges by rank."""
    parts = np.arange(grid.size) // (grid.depth * grid.slices)
    depths = np.arange(grid.size) // grid.slices % grid.depth
    expand, fold, edges = set(), set(), [0] * grid.size
    for u, v in pairs(graph):
        for s in range(grid.slices):
            worker = int(parts[owner[v]] * grid.depth + depths[owner[u]]) * grid.slices + s
            expand.add((u * grid.slices + s, worker))
            fold.add((v * grid.slices + s, worker))
            edges[worker] += 1
    expand, fold = ({(i, r) for i, r in found if owner[i // grid.slices] != r} for found in (expand, fold))
    return expand, fold, edges


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, np.ndarray, Grid]:
    num_nodes = draw(st.integers(1, 12))
    grid = draw(st.sampled_from(legal_grids(draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])))))
    vertex = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=24))
    owner = draw(st.lists(st.integers(0, grid.size - 1), min_size=num_nodes, max_size=num_nodes))
    array = np.array(edges, np.int64).reshape(-1, 2).T
    return as_graph(array, num_nodes), np.array(owner, np.int32), grid


def check(graph: Graph, owner: np.ndarray, grid: Grid) -> Needs:
    expand, fold, edges = brute_force(graph, owner, grid)
    found = find_needs(graph, owner, grid)
    assert sets_of(expand_demand(found).classes()) == expand
    assert sets_of(fold_demand(found).classes()) == fold
    assert found.edges_of_ranks.tolist() == edges
    return found


@given(problems())
def test_equals_brute_force(problem: tuple[Graph, np.ndarray, Grid]):
    check(*problem)


@pytest.mark.sample(3)
@pytest.mark.parametrize("sizes", [(96, 1, 1), (1, 96, 1), (1, 1, 96), (65, 1, 2), (2, 70, 1), (4, 4, 8)])
def test_masks_of_several_words(sizes: tuple[int, int, int]):
    rng, grid = np.random.default_rng(5), Grid(*sizes)
    graph = as_graph(rng.integers(0, 150, (2, 400)), 150)
    check(graph, rng.integers(0, grid.size, 150).astype(np.int32), grid)


def complete(num_nodes: int) -> Graph:
    return as_graph(np.indices((num_nodes, num_nodes)).reshape(2, -1), num_nodes)


@pytest.mark.parametrize("sizes", TOY)
def test_the_toy_graph(sizes: tuple[int, int, int]):
    expanded, folded, dense, edges = TOY[sizes]
    grid, graph = Grid(*sizes), toy_24()
    needs = find_needs(graph, in_ranges(24, grid.size), grid)
    assert [each.tolist() for each in received(needs)] == [expanded, folded]
    assert needs.edges_of_ranks.tolist() == [edges] * grid.size
    needs = find_needs(complete(24), in_ranges(24, grid.size), grid)
    assert [each.tolist() for each in received(needs)] == [[each] * grid.size for each in dense]


@pytest.mark.parametrize(
    "sizes", [(2, 4, 1), (3, 2, 1), (2, 1, 3), (5, 1, 1), (2, 1, 4), (4, 1, 2), (1, 2, 2), (2, 3, 4)]
)
def test_other_grids_of_the_toy_graph(sizes: tuple[int, int, int]):
    grid = Grid(*sizes)
    check(toy_24(), in_ranges(24, grid.size), grid)


@pytest.mark.parametrize("world_size", range(1, 17))
def test_closed_formula_where_everything_is_needed(world_size: int):
    num_nodes, width = 2 * world_size, 3 * world_size
    graph = complete(num_nodes)
    for grid in legal_grids(world_size):
        items = received(find_needs(graph, in_ranges(num_nodes, world_size), grid))
        words = sum(items) * grid.slice_width(width)
        assert words == pytest.approx(np.full(world_size, width * num_nodes * dense_words(grid)))


@pytest.mark.parametrize("world_size", [1, 2, 6, 7, 12, 16])
def test_numbering_and_legal_grids(world_size: int):
    grids = legal_grids(world_size)
    triples = itertools.product(range(1, world_size + 1), repeat=3)
    assert [(g.parts, g.depth, g.slices) for g in grids] == [t for t in triples if np.prod(t) == world_size]
    for grid in grids:
        places = itertools.product(range(grid.parts), range(grid.depth), range(grid.slices))
        for rank, place in enumerate(places):
            assert (grid.part_of(rank), grid.depth_of(rank), grid.slice_of(rank)) == place


@pytest.mark.parametrize(
    "asked, world_size, sizes",
    [
        ("1d", 6, (6, 1, 1)),
        ("1.5d", 8, (4, 2, 1)),
        ("1.5d", 16, (4, 4, 1)),
        ("2d", 4, (2, 1, 2)),
        ("2d", 6, (2, 1, 3)),
        ("2d", 5, (1, 1, 5)),
        ("3d", 8, (2, 2, 2)),
        ("2, 1,3", 6, (2, 1, 3)),
        ((3, 2, 1), 6, (3, 2, 1)),
        (Grid(1, 2, 3), 6, (1, 2, 3)),
    ],
)
def test_what_users_write(asked: object, world_size: int, sizes: tuple[int, int, int]):
    assert as_grid(asked, world_size) == Grid(*sizes)


@pytest.mark.parametrize(
    "asked, world_size, text",
    [
        ((1, 4, 1), 6, r"1 x 4 x 1 = 4 ranks, and there are 6.*\(1,1,6\) .*\(3,2,1\) .*\(6,1,1\)"),
        ("2,2,2", 4, r"2 x 2 x 2 = 8 ranks, and there are 4.*\(4,1,1\)"),
        ("2.5d", 4, r"grid must be '1d', '1.5d', '2d', '3d' or parts,depth,slices.*got '2.5d'"),
        ((4, 0, 1), 4, "depth must be a positive integer"),
        ((2, 1.0, 2), 4, "depth must be a positive integer"),
    ],
)
def test_what_is_no_grid(asked: object, world_size: int, text: str):
    with pytest.raises(ValueError, match=text):
        as_grid(asked, world_size)


def test_what_is_nothing_of_a_grid():
    with pytest.raises(TypeError, match="three integers"):
        as_grid(4, 4)
