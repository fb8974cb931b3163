"""Compiled functions on sets of ranks stored as bits of 64-bit words: lowest member, rows per pair of ranks.

Rank d is bit ``d % 64`` of word ``d // 64``.
Called by `relation`, `planner/bounds/cut_kernels`, `planner/bounds/stage_kernels` and
`planner/methods/hierarchical_kernel`. Free to change while results equal those of Python's integers and sets, also
beyond 64 ranks (`tests/planner/test_bits.py`).
"""

from typing import Any

import numpy as np

from dgcl.planner.planner_compiled import compiled

_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)  # every six bits of a de Bruijn sequence occur once
_PLACE = np.zeros(64, np.int64)
for _bit in range(64):
    _PLACE[(int(_SEQUENCE) << _bit & (1 << 64) - 1) >> 58] = _bit


@compiled(allocates=False)
def lowest_bit(word: np.uint64) -> int:
    """Return the number of the lowest set bit of a uint64 other than 0 (Leiserson, Prokop and Randall, 1998)."""
    alone = word & (~word + np.uint64(1))
    return _PLACE[np.int64((alone * _SEQUENCE) >> np.uint64(58))]  # type: ignore[no-any-return]


@compiled
def pair_rows(source: Any, dests: Any, count: Any, world: int) -> Any:
    """Return how many rows rank s owns that rank d needs, (P, P) int64."""
    need = np.zeros((world, world), np.int64)
    for c in range(source.shape[0]):
        for w in range(dests.shape[1]):
            bits = dests[c, w]
            while bits:
                need[source[c], 64 * w + lowest_bit(bits)] += count[c]
                bits &= bits - np.uint64(1)
    return need
