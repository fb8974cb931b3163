"""The cheapest trees of the compiled programs, against every tree there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Relation
from dgcl.planner.column_generation.master.fractional import answer_columns
from dgcl.planner.column_generation.pricing.flows import Routes, push_buffer
from dgcl.planner.column_generation.pricing.states import StateSpace, build_family, build_states, count_splits
from dgcl.planner.column_generation.pricing.steiner_trees import FreeLinks, FreeProblem, free_answer
from dgcl.planner.column_generation.pricing.tree_program import Choices, cheapest_trees, empty_choices
from dgcl.topology import Topology
from tests.support.optimal_plans import stage_trees
from tests.support.random_machines import instances


def solved(space: StateSpace, price: np.ndarray) -> Choices:
    choices = empty_choices(price.shape[0], space)
    cheapest_trees(space.family, space.moves, price, choices)
    return choices


def cheapest(topology: Topology, source: int, dests: list[int], price: np.ndarray) -> float:
    """The price of the cheapest stage-labelled tree, by trying all; inf if there is none."""
    link_of = topology.arrays().link_of
    trees = stage_trees(topology, source, frozenset(dests), price.shape[0])
    return min((sum(price[k, link_of[s, d]] for s, d, k in tree) for tree in trees), default=np.inf)


@given(
    case=instances(min_devices=2, max_devices=4, max_classes=3),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_values_are_those_of_the_cheapest_trees(
    case: tuple[Relation, Topology], seed: int, data: st.DataObject
):
    relation, topology = case
    if relation.num_classes == 0:
        return
    arrays = topology.arrays()
    num_stages = data.draw(st.integers(1, relation.world_size - 1))
    price = np.random.default_rng(seed).random((num_stages, arrays.num_links)) ** 4
    space = build_states(relation, arrays, [np.arange(relation.world_size)])
    choices = solved(space, price)
    total = 0.0
    for c in range(relation.num_classes):
        expected = cheapest(topology, int(relation.source[c]), relation.dest_ranks(c), price)
        assert choices.value[0, relation.source[c], space.item_set[c]] == pytest.approx(expected)
        total += expected * int(relation.count[c])
    if total < np.inf:
        links = arrays.num_links
        routes = Routes(
            arrays.link_ptr, arrays.link_directions, 1 / arrays.bandwidth, np.ones(links), np.zeros(links)
        )
        buffer, everyone = push_buffer(num_stages, space.family, links), np.array([0, relation.world_size])
        busy = np.zeros((1, num_stages, arrays.num_directions))
        answer_columns(
            space.family, space.moves, choices, space.start, everyone, routes, buffer, busy, np.zeros(1)
        )
        assert float((buffer.link_rows * price).sum()) == pytest.approx(
            total
        )  # what is sent costs what was promised


def test_a_set_may_wait_while_another_part_is_sent():
    """From 0 to {1, 2}: 2 is cheap now, 1 is cheap later. (The part with the lowest bit is the one that waits.)"""
    topology = Topology.from_json(
        {
            "schema": "dgcl-topology/1",
            "name": "two ways",
            "devices": [{"name": f"d{r}"} for r in range(3)],
            "connections": [
                {"name": "a", "kind": "w", "a": "d0", "b": "d1", "bandwidth": 1.0},
                {"name": "b", "kind": "w", "a": "d0", "b": "d2", "bandwidth": 1.0},
            ],
        }
    )
    relation = Relation.from_classes(3, [(0, {1, 2}, 1)])
    space = build_states(relation, topology.arrays(), [np.arange(3)])
    price = np.full((2, topology.arrays().num_links), 100.0)
    price[1, topology.arrays().link_of[0, 1]] = 1.0
    price[0, topology.arrays().link_of[0, 2]] = 2.0
    assert solved(space, price).value[0, 0, space.item_set[0]] == 3.0


@given(
    case=instances(min_devices=2, max_devices=4, max_classes=3, latency=False), seed=st.integers(0, 2**32 - 1)
)
def test_without_stages_values_are_those_of_the_cheapest_trees_too(
    case: tuple[Relation, Topology], seed: int
):
    relation, topology = case
    if relation.num_classes == 0:
        return
    arrays = topology.arrays()
    world = relation.world_size
    weight = np.random.default_rng(seed).random(arrays.num_directions) + 1e-3
    price = np.add.reduceat((weight / arrays.bandwidth)[arrays.link_directions], arrays.link_ptr[:-1])
    space = build_states(relation, arrays, [np.arange(world)])
    routes = Routes(
        arrays.link_ptr, arrays.link_directions, 1 / arrays.bandwidth, np.ones(arrays.num_links),
        np.zeros(arrays.num_links),
    )  # fmt: skip
    links = FreeLinks(arrays.link_src.astype(np.int64), arrays.link_dst.astype(np.int64))
    busy = np.empty((world, arrays.num_directions))
    value = free_answer(FreeProblem(space.family, links, routes, space.start), weight, busy)
    same_in_all_stages = np.tile(price, (world - 1, 1))
    expected = sum(
        int(relation.count[c])
        * cheapest(topology, int(relation.source[c]), relation.dest_ranks(c), same_in_all_stages)
        for c in range(relation.num_classes)
    )
    assert value == pytest.approx(expected)
    assert float((busy.sum(axis=0) * weight).sum()) == pytest.approx(expected)


@pytest.mark.parametrize("wanted", [[0b1], [0b111], [0b1010, 0b0110], [0b11111, 0b100000]])
def test_families_hold_all_subsets_and_all_their_divisions(wanted: list[int]):
    size = 6
    family = build_family([np.arange(size)], [np.array(wanted)])
    masks = family.set_mask.tolist()
    assert masks == sorted({m for m in range(1 << size) if any(m & w == m for w in wanted)})
    for f, mask in enumerate(masks):
        pairs = {
            (masks[a], masks[b])
            for a, b in zip(
                family.pair_first[family.pair_ptr[f] : family.pair_ptr[f + 1]].tolist(),
                family.pair_rest[family.pair_ptr[f] : family.pair_ptr[f + 1]].tolist(),
                strict=True,
            )
        }
        bits = [b for b in range(size) if mask >> b & 1]
        every = {
            (sum(1 << b for b in part), mask - sum(1 << b for b in part))
            for n in range(len(bits) + 1)
            for part in itertools.combinations(bits, n)
        }
        assert pairs == {(a, b) for a, b in every if mask and a & mask & -mask}
        assert [masks[family.minus[f, b]] for b in range(size)] == [mask & ~(1 << b) for b in range(size)]
    assert count_splits(size, np.array(wanted)) == family.pair_first.shape[0]
