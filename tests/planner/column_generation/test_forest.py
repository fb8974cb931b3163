"""Trees in growing arrays, against lists of trees."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner.column_generation.rounding.forest import (
    Forest,
    compact,
    forest_from_trees,
    trees_from_forest,
)
from dgcl.planner.trees import Trees
from tests.support.small_machines import small_topology

ARRAYS = small_topology(4, [(a, b, 1.0) for a in range(4) for b in range(a)]).arrays()
Drawn = list[tuple[int, int, list[tuple[int, int]]]]  # (class, rows, (link, stage) of each edge)


def forest_of(drawn: Drawn) -> Forest:
    edges = [edge for _, _, tree in drawn for edge in tree]
    links = np.array([link for link, _ in edges], np.int64)
    trees = Trees(
        np.array([c for c, _, _ in drawn], np.int32),
        np.ones(len(drawn), np.int64),
        np.cumsum([0, *(len(tree) for _, _, tree in drawn)], dtype=np.int64),
        ARRAYS.link_src[links],
        ARRAYS.link_dst[links],
        np.array([stage for _, stage in edges], np.int32),
    )
    forest = forest_from_trees(trees, ARRAYS)
    forest.count[: len(drawn)] = [rows for _, rows, _ in drawn]  # 0 where an exchange has taken all
    return forest


def listed(forest: Forest) -> Drawn:
    edges = [*zip(forest.link.tolist(), forest.stage.tolist(), strict=True)]
    trees = zip(*(array.tolist() for array in forest[:4]), strict=True)
    return [(c, rows, edges[at : at + size]) for c, rows, at, size in [*trees][: int(forest.used[0])]]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 3),
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=3),
        ),
        max_size=30,
    )
)
def test_equal_trees_become_one_where_the_first_stood(drawn: Drawn):
    merged: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
    for c, rows, tree in drawn:
        if rows:
            merged[c, tuple(tree)] = merged.get((c, tuple(tree)), 0) + rows
    expected = [(c, rows, [*tree]) for (c, tree), rows in merged.items()]
    expected.sort(key=lambda tree: tree[0])  # stable
    found = compact(forest_of(drawn))
    assert listed(found) == expected
    assert trees_from_forest(found, ARRAYS).tree_count.tolist() == [rows for _, rows, _ in expected]
