import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner.synthetic import SHAPES, GraphShape, synthetic_relation


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("world_size", [2, 8, 70])
def test_relations_of_the_papers_graphs(name: str, world_size: int):
    shape = SHAPES[name]
    relation = synthetic_relation(name, world_size, scale=0.002)
    assert relation.world_size == world_size
    assert 0 < relation.num_vertices <= shape.num_vertices * 0.002 + 1
    per_rank = np.bincount(relation.source, weights=relation.count, minlength=world_size)
    assert per_rank.max() <= np.ceil(shape.num_vertices * 0.002 / world_size)


def test_the_same_seed_gives_the_same_relation_and_another_another():
    one, two, three = (synthetic_relation("com-orkut", 8, scale=0.001, seed=s) for s in (5, 5, 6))
    for name in ("source", "dests", "count"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.num_classes != three.num_classes or (one.count != three.count).any()


def test_the_number_of_readers_is_that_of_the_edges():
    """With one vertex's readers in as many parts as there are, every reader outside is a delivery of its
    own.
    """
    shape = GraphShape(20_000, 100_000, inside=0.0, parts=1024, evenness=1e6, exponent=3.5, spread=0.0)
    relation = synthetic_relation(shape, 1024)
    assert relation.deliveries == pytest.approx(100_000, rel=0.03)


def test_nearer_ranks_are_likelier_where_the_shape_says_so():
    shape = GraphShape(40_000, 80_000, inside=0.5, spread=2.0)
    rows = synthetic_relation(shape, 8).pair_rows()
    assert rows[0, 1] > 2 * rows[0, 2] > 4 * rows[0, 7]
    same = synthetic_relation(dataclasses.replace(shape, spread=0.0), 8).pair_rows()
    assert same[0, 1] == pytest.approx(same[0, 7], rel=0.15)


def test_better_partitions_have_smaller_boundaries():
    shape = GraphShape(40_000, 400_000, inside=0.95)
    loose = dataclasses.replace(shape, inside=0.5)
    assert synthetic_relation(shape, 8).num_vertices < 0.6 * synthetic_relation(loose, 8).num_vertices


@pytest.mark.parametrize("world_size", [1, 2])
def test_nothing_outside_is_an_empty_relation(world_size: int):
    assert synthetic_relation(GraphShape(100, 500, inside=1.0), world_size).num_classes == 0
    assert synthetic_relation(GraphShape(100, 0, inside=0.5), world_size).num_classes == 0


@given(st.integers(1, 200), st.integers(0, 3000), st.floats(0, 1), st.integers(1, 130), st.integers(0, 5))
def test_any_sizes_give_a_relation(n: int, m: int, inside: float, world_size: int, seed: int):
    relation = synthetic_relation(GraphShape(n, m, inside=inside), world_size, seed=seed)
    assert relation.num_vertices <= n


def test_drawing_in_chunks_changes_nothing(monkeypatch):
    shape = GraphShape(2000, 20_000, inside=0.5)
    whole = synthetic_relation(shape, 8)
    monkeypatch.setattr("dgcl.planner.synthetic._DRAWS", 100)
    parts = synthetic_relation(shape, 8)
    np.testing.assert_array_equal(whole.dests, parts.dests)
    np.testing.assert_array_equal(whole.count, parts.count)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("facebook", 8), "shape must be one of reddit, com-orkut"),
        (("reddit", 0), "world_size must be >= 1"),
        ((GraphShape(0 + 1, 1, inside=0.5), 8, 0.0), "scale must be positive"),
    ],
)
def test_bad_arguments(arguments: tuple, message: str):
    shape, world_size, *scale = arguments
    with pytest.raises(ValueError, match=message):
        synthetic_relation(shape, world_size, scale=scale[0] if scale else 1.0)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_vertices": 0}, "a graph needs vertices"),
        ({"inside": 1.5}, "inside must be a share"),
        ({"exponent": 1.0}, "exponent > 1"),
        ({"evenness": 0.0}, "evenness > 0"),
    ],
)
def test_bad_shapes(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SHAPES["reddit"], **changes)
