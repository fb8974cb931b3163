"""Compiled loop for bounds by stages: the rows of each owner that each machine needs. Imported on first use."""

from typing import Any

import numpy as np

from dgcl.planner.bits import lowest_bit
from dgcl.planner.planner_compiled import compiled


@compiled
def rows_by_machine(source: Any, dests: Any, count: Any, machine: Any, num_machines: int) -> Any:
    """Return how many rows rank s owns that some rank of machine m needs, (P, num_machines) float64.

    Args:
        source, dests, count: the arrays of a relation.
        machine: (P,) int64, the machine of each rank.
    """
    rows = np.zeros((machine.shape[0], num_machines))
    last = np.full(num_machines, -1, np.int64)  # the last class that was counted
    for c in range(source.shape[0]):
        for w in range(dests.shape[1]):
            bits = dests[c, w]
            while bits:
                m = machine[64 * w + lowest_bit(bits)]
                if last[m] != c:
                    last[m] = c
                    rows[source[c], m] += count[c]
                bits &= bits - np.uint64(1)
    return rows
