"""Reads one table of CUDA's p2pBandwidthLatencyTest: measured rates from each GPU to each other.

    Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
       D\\D     0      1
         0 802.93  26.33
         1  26.32 833.33

The row is the sender, the column the receiver, the diagonal a GPU's own memory. What else is printed is not read.
Called by `files`. Free to change while this table is read, and one that is cut off, garbled or there twice is refused
with its line (`tests/topology/importers/test_p2p.py`, `tests/topology/importers/test_fuzz.py`).
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.checks import shown

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_MOST_GPUS = 1024


def parse_p2p_rates(text: str) -> NDArray[np.float64]:
    """GB/s of each pair, ``(P, P)``, with peer access wherever the test had any.

    Raises:
        ValueError: Cut off, garbled, or without that table; names the line and the reason.
    """
    lines = text.splitlines()
    title = "Unidirectional P2P=Enabled Bandwidth"
    found = [number for number, line in enumerate(lines) if line.strip().startswith(title)]
    if not found:
        raise ValueError(f"holds no table {title!r}: give all that p2pBandwidthLatencyTest prints")
    if len(found) > 1:
        raise ValueError(f"line {found[1] + 1}: the table {title!r} is there a second time")
    start = found[0] + 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    return _table(lines, start, title)


def _table(lines: list[str], start: int, title: str) -> NDArray[np.float64]:
    """The numbers of the table whose header is ``lines[start]``."""
    header = lines[start].split() if start < len(lines) else []
    count = len(header) - 1
    if not 0 < count < _MOST_GPUS or header != ["D\\D", *map(str, range(count))]:
        raise ValueError(
            f"line {start + 1}: expected the columns of {title!r}, D\\D 0 1 2 ... (got {shown(' '.join(header))})"
        )
    rows = [line.split() for line in lines[start + 1 : start + 1 + count]]
    for index, (name, *rates) in enumerate(row or [""] for row in rows):
        right = all(_NUMBER.fullmatch(rate) and 0 < float(rate) < math.inf for rate in rates)
        if name != str(index) or len(rates) != count or not right:
            raise ValueError(
                f"line {start + 2 + index}: expected row {index} of {title!r}, of {count} positive numbers"
                f" (got {shown(' '.join(rows[index]))})"
            )
    if len(rows) < count:
        raise ValueError(f"line {len(lines)}: the text ends after {len(rows)} of {count} rows of {title!r}")
    return np.array([row[1:] for row in rows], np.float64)
