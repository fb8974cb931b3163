"""What is copied, who keeps it, and that it was predicted: against searches in networkx and exhaustive counts."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import Graph, as_graph
from dgcl.prepare.share import Share
from dgcl.relation.classes import halo_classes
from dgcl.replication.copies import copy_graph, hop_distances
from dgcl.replication.counts import count_copies, holdings, level
from dgcl.replication.strategy import Replicas
from tests.dgcl.awkward import CASES, Case
from tests.dgcl.replication.machines import LAYOUTS, machines
from tests.dgcl.support_shares import prepare

MANY = [list(range(70)), [rank // 2 for rank in range(140)]]  # more machines than a mask has bits


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, np.ndarray, np.ndarray, int]:
    """A graph, its parts, the machine of each rank, and hops."""
    machine_of_rank = draw(st.sampled_from([*LAYOUTS.values(), [0], [0, 0], [0, 1], *MANY]))
    num_nodes = draw(st.integers(1, 30))
    vertex = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=60))
    part = draw(st.lists(st.integers(0, len(machine_of_rank) - 1), min_size=num_nodes, max_size=num_nodes))
    graph = as_graph(np.array(edges, np.int64).reshape(-1, 2).T, num_nodes=num_nodes)
    return graph, np.array(part, np.int32), np.array(machine_of_rank), draw(st.integers(1, 4))


def distances(graph: Graph, core: np.ndarray) -> dict[int, int]:
    """How far each vertex that reaches ``core`` is from it, in edges."""
    backwards = nx.MultiDiGraph()
    backwards.add_nodes_from(range(graph.num_nodes))
    sources, heads = graph.edges()
    backwards.add_edges_from(zip(heads.tolist(), sources.tolist(), strict=True))
    return nx.multi_source_dijkstra_path_length(backwards, set(core.tolist())) if len(core) else {}


@given(problems())
def test_copies_are_all_that_is_within_reach(problem: tuple[Graph, np.ndarray, np.ndarray, int]):
    graph, part, machine_of_rank, hops = problem
    counts = count_copies(graph, part, machine_of_rank, hops)
    copies = copy_graph(graph, part, counts)
    first = 0
    for machine in range(len(counts.rows)):
        core = np.flatnonzero(machine_of_rank[part] == machine)
        far = distances(graph, core)
        near = sorted(v for v, distance in far.items() if 0 < distance <= hops)
        held = [*core.tolist(), *near]
        mine = slice(first, first + len(held))
        assert counts.rows[machine] == len(held)
        assert copies.origin[mine].tolist() == held
        assert copies.part[mine][: len(core)].tolist() == part[core].tolist()
        assert (machine_of_rank[copies.part[mine]] == machine).all()
        for copy, vertex in enumerate(held, first):  # in-edges in their order, or none
            own = slice(copies.graph.indptr[copy], copies.graph.indptr[copy + 1])
            given = graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]
            wanted = given.tolist() if far[vertex] < hops else []
            read = copies.graph.indices[own]
            assert copies.origin[read].tolist() == wanted
            assert ((read >= first) & (read < mine.stop)).all()
        assert counts.edges[machine] == copies.graph.indptr[mine.stop] - copies.graph.indptr[first]
        first = mine.stop
    assert first == len(copies.origin)


@given(problems())
def test_every_rank_keeps_what_was_foretold(problem: tuple[Graph, np.ndarray, np.ndarray, int]):
    graph, part, machine_of_rank, hops = problem
    counts = count_copies(graph, part, machine_of_rank, hops)
    copies = copy_graph(graph, part, counts)
    kept = np.bincount(copies.part, minlength=len(machine_of_rank))
    assert kept.tolist() == counts.owned().tolist() == counts.expected().owned.tolist()
    for machine, rows in enumerate(counts.rows):
        ranks = np.flatnonzero(machine_of_rank == machine)
        assert kept[ranks].max() <= max(-(-rows // len(ranks)), counts.core[ranks].max())


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 12))
def test_level_is_as_even_as_can_be(low: list[int], more: int):
    found = level(np.array(low), sum(low) + more)
    assert found.sum() == sum(low) + more
    assert (found >= low).all()
    options = itertools.product(*(range(most, most + more + 1) for most in low))
    best = min(max(option) for option in options if sum(option) == sum(low) + more)
    assert found.max() == best


def test_a_replica_goes_to_the_rank_that_reads_it_most():
    """Rank 1 reads vertex 4 twice, rank 0 once; rank 0 alone reads vertex 5."""
    edges = np.array([[4, 4, 4, 5], [0, 2, 3, 1]])
    counts = count_copies(as_graph(edges), np.array([0, 0, 1, 1, 2, 2], np.int32), np.array([0, 0, 1]), 1)
    copies = copy_graph(as_graph(edges), np.array([0, 0, 1, 1, 2, 2], np.int32), counts)
    assert dict(zip(copies.origin[4:6].tolist(), copies.part[4:6].tolist(), strict=True)) == {4: 1, 5: 0}


def shares_of(graph: Graph, layout: str, hops: int) -> list[Share]:
    topology = machines(LAYOUTS[layout])
    return prepare(graph, topology.num_devices, topology, strategy=Replicas(hops))


GRAPH = as_graph(np.random.default_rng(3).integers(0, 60, (2, 150)), num_nodes=60)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hops", [1, 2, 5])
def test_memory_is_what_was_predicted(layout: str, hops: int):
    """To the byte: of the local graphs that are built, and of the rows that programs number."""
    shares = shares_of(GRAPH, layout, hops)
    part = np.empty(60, np.int32)
    for share in shares:
        part[share.local.owned_ids[: share.local.num_core]] = share.program.rank
    counts = count_copies(GRAPH, part, np.array(LAYOUTS[layout]), hops)
    copies = copy_graph(GRAPH, part, counts)
    held = holdings(copies.graph, copies.part, halo_classes(copies.graph, copies.part, len(shares)).relation)
    predicted = held.bytes_held(512, hops, GRAPH.edge_ids is not None)
    names = (
        "owned_ids",
        "halo_ids",
        "indptr",
        "indices",
        "edge_first",
        "edge_order",
        "in_degrees",
        "out_degrees",
    )
    for share, expected, owned in zip(shares, predicted, counts.owned(), strict=True):
        arrays = [getattr(share.local, name) for name in names]
        graph_bytes = sum(array.nbytes for array in arrays if array is not None)
        assert expected == graph_bytes + (hops + 1) * 512 * share.program.num_local
        assert share.program.num_owned == share.local.num_owned == owned
    assert counts.edges.sum() == sum(share.local.num_edges for share in shares)
    assert shares[0].plan.meta["replication"]["copies"] == pytest.approx(counts.row_factor)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_planned_between_machines(layout: str):
    shares = shares_of(GRAPH, layout, 2)
    plan, machine = shares[0].plan, np.array(LAYOUTS[layout])
    assert plan.trees.num_trees > 0
    assert (machine[plan.trees.edge_src] == machine[plan.trees.edge_dst]).all()
    for share in shares:
        for schedule in (share.program.expand, share.program.fold):
            peers = np.concatenate([schedule.send_peer, schedule.recv_peer])
            assert (machine[peers] == machine[share.program.rank]).all()


@pytest.mark.parametrize("name", ["dgx1x2", "hgx_h100x2"])
def test_network_cards_carry_nothing(name: str):
    """By the links' routes of real machines, bytes of connections that lead off a machine."""
    from dgcl.planner.cost import stage_loads
    from dgcl.topology import resolve_topology

    topology = resolve_topology(name)
    graph = as_graph(np.random.default_rng(4).integers(0, 400, (2, 900)), num_nodes=400)
    for strategy, crossing in ((Replicas(2), False), (None, True)):
        shares = prepare(graph, topology.num_devices, topology, method="direct", strategy=strategy)
        plan = shares[0].plan
        loads = stage_loads(plan.trees, plan.topology.arrays(), 512).sum(axis=0)
        assert bool(loads[_off_machine(topology)].any()) == crossing
        assert loads.any()


def _off_machine(topology) -> np.ndarray:
    """Which directions of connections are used by links between machines alone."""
    arrays = topology.arrays()
    machine = np.array([device.machine for device in topology.devices])
    inside, between = set(), set()
    for link in range(len(arrays.link_src)):
        hops = arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]].tolist()
        same = machine[arrays.link_src[link]] == machine[arrays.link_dst[link]]
        (inside if same else between).update(hops)
    return np.array(sorted(between - inside))


def test_edges_and_degrees_are_those_of_the_whole_graph():
    for share in shares_of(GRAPH, "three-unequal", 2):
        local = share.local
        sources, heads = GRAPH.edges()
        assert sources[local.edge_ids].tolist() == local.local_ids[local.indices].tolist()
        assert heads[local.edge_ids].tolist() == local.owned_ids[local.heads].tolist()
        assert local.in_degrees.tolist() == GRAPH.in_degrees()[local.local_ids].tolist()
        assert local.out_degrees.tolist() == GRAPH.out_degrees()[local.local_ids].tolist()
        for portion in np.split(local.owned_ids, [local.num_core]):
            assert (np.diff(portion) > 0).all()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("hops", [1, 3])
def test_hop_distances(case: Case, hops: int):
    part = case.part(3)
    reads = np.zeros((case.num_nodes, case.num_nodes), bool)
    reads[case.edges[1], case.edges[0]] = True
    for rank in range(3):
        near = part == rank
        distance = hop_distances(case.graph, near, hops)
        expected = np.where(near, 0, -1)
        for hop in range(1, hops + 1):
            near = near | reads[near].any(0)
            expected[near & (expected < 0)] = hop
        np.testing.assert_array_equal(distance, expected)
