"""dgcl.relation.demand: who wants which item, whatever items are, against sets."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph
from dgcl.planner.methods import make_plan
from dgcl.program import compile_programs
from dgcl.relation import build_classes, halo_demand
from dgcl.relation.demand import demand_of_pairs
from dgcl.topology import resolve_topology
from tests.support.graphs import edge_indices, random_parts
from tests.support.proof import prove, wanted_by


def wants(demand: Any) -> set[tuple[int, int]]:
    """All pairs (item, rank that wants it)."""
    return {(item, rank) for rank in range(demand.world_size) for item in wanted_by(rank, demand).tolist()}


@given(
    edge_indices(max_nodes=30, max_edges=100),
    st.sampled_from([1, 2, 8, 9, 33, 64, 65, 200]),
    st.integers(0, 1000),
)
def test_a_graph_and_its_pairs_make_the_same_demand(
    drawn: tuple[int, np.ndarray], world_size: int, seed: int
):
    num_nodes, edges = drawn
    part = random_parts(num_nodes, world_size, seed)
    found = halo_demand(as_graph(edges, num_nodes=num_nodes), part, world_size)
    assert wants(found) == {(u, int(part[v])) for u, v in edges.T.tolist() if part[u] != part[v]}
    paired = demand_of_pairs(np.asarray(part, np.int32), edges[0], np.asarray(part)[edges[1]], world_size)
    assert paired.readers.dtype == found.readers.dtype
    np.testing.assert_array_equal(paired.readers, found.readers)
    np.testing.assert_array_equal(paired.owner, found.owner)


def test_items_that_are_no_vertices():
    """Two slices of four rows on a grid of two parts and two slices: slice s of a row goes to slice s of each part."""
    part_of, num_slices, ranks = np.array([0, 0, 1, 1]), 2, 4
    owner = np.repeat(part_of * num_slices, num_slices)  # slice 0 of its part owns both slices of a row
    items = np.arange(8)
    to = [(item, p * num_slices + item % num_slices) for item in items.tolist() for p in (0, 1)]
    demand = demand_of_pairs(owner, *np.array(to).T, ranks)
    plan = make_plan(build_classes(demand).relation, resolve_topology("uniform", ranks))
    programs = compile_programs(plan, build_classes(demand))
    prove(programs, demand)
    for program in programs:
        held = np.concatenate([program.owned_ids, program.halo_ids]).tolist()
        assert {item for item in held if owner[item] != program.rank} == {
            item for item, rank in to if rank == program.rank and owner[item] != rank
        }
