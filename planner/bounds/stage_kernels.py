"""Counts, in a compiled loop, how many rows of each owner each machine needs.

A row counts once for a machine, however many of its ranks need it. The module is imported on first use, because
importing numba takes longer than making a small plan.
Called by `stages`. Free to change while a row counts once: counted twice, it would raise a bound above the best plan of
a small cluster (`tests/planner/bounds/test_stages.py`).
"""

from typing import Any

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.planner_compiled import compiled


@compiled(allocates=False)
def add_rows_by_machine(source: Any, dests: Any, count: Any, machine: Any, rows: Any, last: Any) -> None:
    """Add to `rows` (P, machines) how many rows rank s owns that some rank of machine m needs.

    Args:
        source, dests, count: the arrays of a relation.
        machine: (P,) int64, the machine of each rank.
        last: scratch; the last class that was counted for each machine, -1 at first.
    """
    for c in range(source.shape[0]):
        for w in range(dests.shape[1]):
            bits = dests[c, w]
            while bits:
                m = machine[64 * w + lowest_bit(bits)]
                if last[m] != c:
                    last[m] = c
                    rows[source[c], m] += count[c]
                bits &= bits - np.uint64(1)
