"""What :mod:`tests.dgcl.grid.test_items` shares with other tests."""

import numpy as np

from dgcl.grid.items import expand_demand, fold_demand
from dgcl.grid.needs import Needs

#: (parts, depth, slices): of each rank of the toy graph what it receives in the expand, in the fold, both if all were
#: needed, and its edges.
TOY = {
    (4, 1, 1): ([5] * 4, [0] * 4, (18, 0), 18),
    (2, 2, 1): ([3, 4, 3, 4], [3] * 4, (6, 6), 18),
    (1, 4, 1): ([0] * 4, [5] * 4, (0, 18), 18),
    (2, 1, 2): ([13] * 4, [6] * 4, (18, 6), 36),
    (1, 1, 4): ([18] * 4, [18] * 4, (18, 18), 72),
    (4, 2, 1): ([2, 3] * 4, [1] * 8, (9, 3), 9),
    (2, 2, 2): ([6, 6, 7, 7] * 2, [7, 5] * 4, (9, 9), 18),
}


def received(needs: Needs) -> tuple[np.ndarray, np.ndarray]:
    """Items of each rank in the expand, and in the fold."""
    expand, fold = (demand(needs).classes().relation.pair_rows() for demand in (expand_demand, fold_demand))
    return expand.sum(0), fold.sum(1)
