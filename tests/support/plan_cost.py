"""What :mod:`tests.planner.test_plan_cost` shares with other tests."""

import numpy as np

from dgcl.planner import Trees
from tests.support.planner_oracle import Edge


def trees_of(*trees: tuple[int, int, list[Edge]]) -> Trees:
    """Trees from (class, count, edges)."""
    edges = [edge for _, _, some in trees for edge in some]
    return Trees(
        [c for c, _, _ in trees],
        [n for _, n, _ in trees],
        np.cumsum([0, *(len(some) for _, _, some in trees)]),
        [s for s, _, _ in edges],
        [d for _, d, _ in edges],
        [k for _, _, k in edges],
    )
