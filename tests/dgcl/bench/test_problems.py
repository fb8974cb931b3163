"""Problems say what they were made from: every rank needs exactly the vertices that it was to need."""

import numpy as np
import pytest

from dgcl.bench.problems import (
    Problem,
    from_pattern,
    from_relation,
    load_problem,
    save_problem,
)
from dgcl.planner import Relation
from tests.support.awkward import CASES


def needs_of(problem: Problem) -> list[set[int]]:
    """The vertices of others that each rank's edges read, from the edge list."""
    sources, heads = problem.graph.edges()
    owner = problem.part
    return [
        {int(u) for u, v in zip(sources, heads, strict=True) if owner[v] == rank != owner[u]}
        for rank in range(problem.world_size)
    ]


@pytest.mark.parametrize(
    "pattern, received, boundary", [("alltoall", 15, 60), ("allgather", 15, 20), ("ring", 5, 20)]
)
def test_patterns(pattern: str, received: int, boundary: int):
    problem = from_pattern(pattern, 4, 5)
    needs = needs_of(problem)
    assert [len(need) for need in needs] == [received] * 4
    assert problem.deliveries == 4 * received
    assert len(set.union(*needs)) == boundary
    if pattern == "ring":
        assert all({problem.part[v] for v in need} == {(r - 1) % 4} for r, need in enumerate(needs))


def test_an_unknown_pattern_is_refused():
    with pytest.raises(ValueError, match=r"pattern must be one of alltoall, allgather, ring \(got 'star'"):
        from_pattern("star", 4, 5)


def test_a_relation_comes_back():
    relation = Relation.from_classes(4, [(0, {1, 2}, 3), (0, {3}, 2), (2, {0, 1, 3}, 4)])
    found = from_relation("relation", relation).classes.relation
    for name in ("source", "dests", "count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(relation, name))


def test_saved_and_loaded(tmp_path):
    problem = Problem("one", CASES[2].graph, CASES[2].part(3), 3)
    save_problem(problem, tmp_path / "p.npz")
    found = load_problem(tmp_path / "p.npz")
    assert (found.name, found.world_size) == ("one", 3)
    assert needs_of(found) == needs_of(problem)
