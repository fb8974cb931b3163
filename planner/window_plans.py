"""Divides a plan into windows: plans by themselves, each with some of its items along the same trees.

Each item travels a tree of its own and is in one window, so a window has the plan's trees with fewer rows on each, and
needs no planning; over all windows exactly the plan's rows travel. Items that some rank wants have *places*: their
numbers in the order (class, id), in which trees take them, too. The ways to divide, "mixed" and "owner", are below.
Called by `dgcl/aggregation/connect_aggregators` and `dgcl/program/window_programs`. Free to change while windows are
proved like plans, divide the rows, and, if mixed, have items of each class evenly
(`tests/dgcl/program/test_window_programs.py`).
"""

from typing import Literal

import numpy as np

from dgcl.planner.array_types import Int64Array, pointers
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.topology.checks import check_choice, check_index

By = Literal["mixed", "owner"]


# W windows, by one of two ways:
# - "mixed": window ``place % W``. Items of each class are in all windows, and so is each rank's halo, evenly;
# - "owner": window q are the items of rank q: one rank after the other sends (CAGNET's and MG-GCN's staged broadcast).


def check_windows(num_windows: int | None, by: str, num_rows: int, world_size: int) -> int:
    """Return the number of windows; 1 where None are asked for, or as many as ranks with "owner".

    Raises:
        ValueError, TypeError: Below 1, above ``num_rows``, another number than that of the ranks with "owner", or
            ``by`` is none of the ways to divide rows.
    """
    check_choice(by, "by", ("mixed", "owner"))
    if num_windows is None:
        return world_size if by == "owner" else 1
    number = check_index(num_windows, "windows", 1, None if by == "owner" else max(num_rows, 1))
    if by == "owner" and number != world_size:
        raise ValueError(
            f"windows must be {world_size}, the number of ranks, or left out with by='owner' (got {number})"
        )
    return number


def window_of_places(places: Int64Array, relation: Relation, num_windows: int, by: By) -> Int64Array:
    """Return the window of each place, ``(n,)`` int64; -1 for place -1."""
    if by == "mixed":
        window = places.astype(np.int64) % num_windows
    else:
        classes = np.searchsorted(np.cumsum(relation.count), places, side="right")
        window = np.append(relation.source, np.int32(-1))[classes].astype(np.int64)
    window[places < 0] = -1
    return window


def window_trees(relation: Relation, trees: Trees, num_windows: int, by: By) -> list[tuple[Relation, Trees]]:
    """Return the relation and the trees of each window: what has no row in it is left out."""
    order = np.argsort(trees.tree_class, kind="stable")
    ends = np.empty(trees.num_trees, np.int64)
    ends[order] = np.cumsum(trees.tree_count[order])
    starts = ends - trees.tree_count
    parts = []
    for window in range(num_windows):
        if by == "mixed":  # places p < x with p % W == window: (x + W - 1 - window) // W
            more = num_windows - 1 - window
            rows = (ends + more) // num_windows - (starts + more) // num_windows
        else:
            rows = np.where(relation.source[trees.tree_class] == window, trees.tree_count, 0)
        parts.append(_restricted(relation, trees, rows))
    return parts


def _restricted(relation: Relation, trees: Trees, rows: Int64Array) -> tuple[Relation, Trees]:
    """The relation and the trees with ``rows`` (T,) of each tree."""
    counts = np.zeros(relation.num_classes, np.int64)
    np.add.at(counts, trees.tree_class, rows)
    classes, kept = counts > 0, rows > 0
    edges = np.repeat(kept, np.diff(trees.edge_ptr))
    number = np.cumsum(classes) - 1
    return (
        Relation(relation.world_size, relation.source[classes], relation.dests[classes], counts[classes]),
        Trees(
            number[trees.tree_class[kept]].astype(np.int32),
            rows[kept],
            pointers(np.diff(trees.edge_ptr)[kept]),
            trees.edge_src[edges],
            trees.edge_dst[edges],
            trees.edge_stage[edges],
        ),
    )
