import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner.relays import without_idle_relays
from dgcl.planner.verify.delivery import verify_trees
from dgcl.program import Program
from dgcl.program.compile import ids_by_owner
from tests.support.graphs import HAND_NEEDS
from tests.support.plans import TREES, Tree, World, at_random, make_world, random_world

Transfer = tuple[int, int, int]  # stage, sender, receiver


@dataclass
class Expected:
    """What the rules of dgcl.program demand of a world, found vertex by vertex."""

    needed: dict[Transfer, list[int]]  # global ids that the receiver needs, in the order sent
    passed: dict[Transfer, list[int]]  # those that it only passes on
    feeds: set[tuple[Transfer, Transfer]]  # (brings a row to a rank, sends it on from there)


def expected_of(world: World) -> Expected:
    needed, passed = defaultdict(list), defaultdict(list)
    feeds = set()
    trees, classes, relation = world.plan.trees, world.classes, world.plan.relation
    tree_of: dict[int, int] = {}
    for c, of_class in enumerate(np.split(classes.items, np.cumsum(relation.count))[:-1]):
        vertices = of_class.tolist()
        assert vertices == sorted(vertices)
        for tree in np.flatnonzero(trees.tree_class == c).tolist():
            for _ in range(int(trees.tree_count[tree])):
                tree_of[vertices.pop(0)] = tree
        assert not vertices
    for vertex, tree in sorted(tree_of.items()):
        dests = relation.dest_ranks(int(trees.tree_class[tree]))
        brought_by: dict[int, Transfer] = {}
        for e in range(int(trees.edge_ptr[tree]), int(trees.edge_ptr[tree + 1])):
            sender, receiver = int(trees.edge_src[e]), int(trees.edge_dst[e])
            transfer = (int(trees.edge_stage[e]), sender, receiver)
            (needed if receiver in dests else passed)[transfer].append(vertex)
            brought_by[receiver] = transfer
            if sender in brought_by:
                feeds.add((brought_by[sender], transfer))
    return Expected(needed, passed, feeds)


def relay_places(program: Program, expected: Expected) -> dict[int, int]:
    """Global id to the local row where an expand keeps it: as the receives say, one slice for each."""
    places: dict[int, int] = {}
    schedule = program.expand
    for stage, peer, (_, first) in zip(
        schedule.recv_stage.tolist(), schedule.recv_peer.tolist(), schedule.recv_to.tolist(), strict=True
    ):
        for i, vertex in enumerate(sorted(expected.passed.get((stage, peer, program.rank), []))):
            places[vertex] = program.num_local + first + i
    return places


def local_rows(program: Program, expected: Expected) -> dict[int, int]:
    """Global id to local row in a fold: owned, halo, then rows passed on, by (arrival stage, sender, global id)."""
    ids = program.owned_ids.tolist()
    for kind in (expected.needed, expected.passed):
        arriving = sorted(transfer for transfer in kind if transfer[2] == program.rank)
        for transfer in arriving:
            ids += sorted(kind[transfer])
    return {vertex: row for row, vertex in enumerate(ids)}


def check_program(world: World, program: Program, expected: Expected):
    rows = [{**local_rows(other, expected), **relay_places(other, expected)} for other in world.programs]
    mine, numbers = rows[program.rank], local_rows(program, expected)
    id_of = {row: vertex for vertex, row in numbers.items()}
    assert program.halo_ids.tolist() == [id_of[row] for row in range(program.num_owned, program.num_local)]
    assert program.num_local + program.num_relay == len(numbers)

    every = sorted({*expected.needed, *expected.passed})
    last_stage = max((stage for stage, _, _ in every), default=0)
    slots: dict[int, list[int]] = defaultdict(list)  # local row -> places in the arrival buffer
    arrivals = sorted((last_stage - s, d) for s, o, d in every if o == program.rank)  # (fold stage, child)
    for stage, child in arrivals:
        transfer = (last_stage - stage, program.rank, child)
        receive = [*zip(program.fold.recv_stage.tolist(), program.fold.recv_peer.tolist(), strict=True)]
        first = int(program.fold.recv_to[receive.index((stage, child)), 0])
        vertices = expected.needed.get(transfer, []) + expected.passed.get(transfer, [])
        for i, vertex in enumerate(vertices):
            slots[numbers[vertex]].append(first + i)
    table = [(row, slot) for row in sorted(slots) for slot in sorted(slots[row])]
    assert list(zip(program.arrival_rows.tolist(), program.arrival_slots.tolist(), strict=True)) == table
    assert (
        list(zip(program.fold.recv_stage.tolist(), program.fold.recv_peer.tolist(), strict=True)) == arrivals
    )

    sends = sorted((s, d) for s, o, d in every if o == program.rank)
    expand = program.expand
    assert list(zip(expand.send_stage.tolist(), expand.send_peer.tolist(), strict=True)) == sends
    for i, (stage, receiver) in enumerate(sends):
        transfer = (stage, program.rank, receiver)
        theirs = rows[receiver]
        for portion, ids in enumerate((expected.needed.get(transfer, []), expected.passed.get(transfer, []))):
            assert expand.send_count[i, portion] == len(ids)
            start = int(expand.send_from[i, portion])
            assert program.send_rows[start : start + len(ids)].tolist() == [mine[vertex] for vertex in ids]
            base = int(expand.send_to[i, portion]) + (world.programs[receiver].num_local if portion else 0)
            assert [theirs[vertex] for vertex in ids] == list(range(base, base + len(ids))), "one slice"
        waits = expand.send_deps[expand.send_dep_ptr[i] : expand.send_dep_ptr[i + 1]].tolist()
        waited = [(int(expand.recv_stage[r]), int(expand.recv_peer[r]), program.rank) for r in waits]
        assert sorted(waited) == sorted(before for before, after in expected.feeds if after == transfer)
    fold = program.fold
    returns = sorted((last_stage - s, o) for s, o, d in every if d == program.rank)
    assert list(zip(fold.send_stage.tolist(), fold.send_peer.tolist(), strict=True)) == returns
    for i, (stage, parent) in enumerate(returns):
        transfer = (last_stage - stage, parent, program.rank)
        waits = fold.send_deps[fold.send_dep_ptr[i] : fold.send_dep_ptr[i + 1]].tolist()
        waited = [(last_stage - int(fold.recv_stage[r]), program.rank, int(fold.recv_peer[r])) for r in waits]
        assert sorted(waited) == sorted(after for before, after in expected.feeds if before == transfer)


@pytest.mark.parametrize("trees", TREES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_programs_follow_the_rules_of_numbering(trees: str, world_size: int):
    world = random_world(world_size, world_size, trees)
    expected = expected_of(world)
    for program in world.programs:
        check_program(world, program, expected)


@given(
    seed=st.integers(0, 2**20),
    world_size=st.integers(1, 8),
    num_nodes=st.integers(1, 40),
    density=st.integers(0, 6),
    empty=st.sets(st.integers(1, 7)),
)
def test_every_plan_compiles_as_the_rules_say(
    seed: int, world_size: int, num_nodes: int, density: int, empty: set[int]
):
    """Compiles and is proved (by make_world), and is what a vertex-by-vertex reading of the rules gives."""
    world = random_world(
        seed,
        world_size,
        at_random(seed),
        num_nodes=num_nodes,
        num_edges=density * num_nodes,
        empty=sorted(empty),
    )
    verify_trees(world.plan.relation, world.plan.trees, world.plan.topology)
    expected = expected_of(world)
    for program in world.programs:
        check_program(world, program, expected)


def test_random_trees_cover_what_planners_might_make():
    """The random plans have relays, unused stages, several trees per class, and late departures."""
    worlds = [random_world(seed, 6, at_random(seed)) for seed in range(5)]
    trees = [world.plan.trees for world in worlds]
    assert all(any(program.num_relay for program in world.programs) for world in worlds)
    assert all(t.num_trees > world.plan.relation.num_classes for t, world in zip(trees, worlds, strict=True))
    roots = [t.edge_stage[t.edge_ptr[:-1]] for t in trees]
    assert all((stage > 0).any() for stage in roots)
    assert all(t.num_stages <= 5 for t in trees)


# Cases worked out by hand.

CYCLE = [(0, 1), (0, 5), (1, 2), (2, 4), (3, 0), (4, 3), (5, 2)]
BINARY = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)]


def sent(world: World) -> dict[tuple[int, int], set[int]]:
    """(sender, receiver) -> global ids."""
    found = {}
    for program in world.programs:
        ids = np.concatenate([program.owned_ids, program.halo_ids])
        schedule = program.expand
        for i, peer in enumerate(schedule.send_peer.tolist()):
            start, count = int(schedule.send_from[i, 0]), int(schedule.send_count[i, 0])
            found[program.rank, peer] = set(ids[program.send_rows[start : start + count]].tolist())
    return found


def test_needed_rows_of_the_seven_edges_on_three_ranks():
    world = make_world(CYCLE, [0, 0, 1, 1, 2, 2], 3)
    assert sent(world) == HAND_NEEDS


def test_halo_rows_of_the_binary_tree_on_three_ranks():
    world = make_world(BINARY, np.arange(7) % 3, 3)
    assert [program.owned_ids.tolist() for program in world.programs] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [program.halo_ids.tolist() for program in world.programs] == [[1, 2], [0], [0]]


def test_halo_rows_are_ordered_by_stage_before_sender():
    """On the line 0-1-2, rows of rank 1 reach rank 0 in stage 0, those of rank 2, over rank 1, in stage 1."""
    world = make_world([(4, 0), (1, 0), (5, 0), (2, 0)], [0, 1, 1, 0, 2, 2], 3, "line")
    assert world.programs[0].halo_ids.tolist() == [1, 2, 4, 5]
    assert world.programs[1].num_relay == 2
    assert world.programs[0].expand.recv_stage.tolist() == [0, 1]
    assert world.programs[0].expand.recv_peer.tolist() == [1, 1]


def test_a_world_without_exchange_has_empty_programs():
    world = make_world([(0, 1), (2, 3)], [0, 0, 1, 1], 2)
    for program in world.programs:
        assert (program.num_halo, program.num_relay, program.num_stages) == (0, 0, 0)
        assert program.expand.rows_sent == program.fold.rows_sent == program.expand.recv_count.size == 0


def test_more_rows_than_an_index_can_name_is_an_error(monkeypatch):
    monkeypatch.setattr("dgcl.program.compile._MAX_ROWS", 20)
    with pytest.raises(ValueError, match="part: a rank would hold more than 20 rows; use more ranks"):
        random_world(0, 2)


def with_idle_relays(source: int, dests: list[int], count: int, world_size: int) -> list[tuple[Tree, int]]:
    """Peer to peer, and on from the last destination through all others, of which nobody needs the row."""
    others = [rank for rank in range(world_size) if rank != source and rank not in dests]
    chain = itertools.pairwise([dests[-1], *others])
    return [
        ([*((source, dest, 0) for dest in dests), *((a, b, 1 + k) for k, (a, b) in enumerate(chain))], count)
    ]


def test_relays_that_serve_nobody_are_left_out_of_the_programs():
    """The plan is one (docs/plan-format.md allows it); its programs are those of the plan without them."""
    graph = np.random.default_rng(2).integers(0, 30, (2, 60))
    part = np.arange(30) % 5
    idle, plain = (make_world(graph.T, part, 5, trees) for trees in (with_idle_relays, "direct"))
    verify_trees(idle.plan.relation, idle.plan.trees, idle.plan.topology)
    assert idle.plan.trees.rows_moved() > plain.plan.trees.rows_moved()
    for mine, theirs in zip(idle.programs, plain.programs, strict=True):
        assert mine.num_relay == 0
        assert mine.num_stages == theirs.num_stages == 1
        assert (mine.send_rows == theirs.send_rows).all()
        assert (mine.halo_ids == theirs.halo_ids).all()
    assert without_idle_relays(plain.plan) is plain.plan.trees


@pytest.mark.parametrize("num_ranks", [1, 127, 130, 300, 40_000])
def test_items_are_numbered_by_owner_for_any_number_of_ranks(num_ranks: int):
    owner = np.random.default_rng(0).permutation(np.arange(2 * num_ranks) % num_ranks)
    owned_ids = ids_by_owner(owner, np.full(num_ranks, 2))
    pairs = sorted((int(rank), item) for item, rank in enumerate(owner))
    assert [ids.tolist() for ids in owned_ids] == [
        [a[1], b[1]] for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    ]
