"""Tables of CUDA's p2pBandwidthLatencyTest: measured rates between every two GPUs.

    Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
       D\\D     0      1
         0 802.93  26.33
         1  26.32 833.33

The row is the sender, the column the receiver, the diagonal a GPU's own memory.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.checks import shown

_TITLE = re.compile(
    r"(P2P Connectivity|Unidirectional P2P=(?:Enabled|Disabled) Bandwidth|"
    r"Bidirectional P2P=(?:Enabled|Disabled) Bandwidth|P2P=(?:Enabled|Disabled) Latency)"
    r"(?: \(P2P (?:Writes|Reads)\))? Matrix(?: \((?:GB/s|us)\))?\s*"
)
_CORNERS = {r"D\D": "", "GPU": " GPU", "CPU": " CPU"}
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_PROSE = re.compile(
    r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\].*|Device: \d+, .*|"
    r"Device=\d+ (CAN|CANNOT) Access Peer Device=\d+.*|\*\*\*NOTE:.*|So you can see .*|"
    r"NOTE: .*|.*performance measurements.*|```.*|\s*"
)
_MOST_GPUS = 1024


@dataclass(frozen=True, eq=False)
class P2pTables:
    """The tables of one run, (P, P) each, by their titles without "Matrix" and units.

    Attributes:
        num_gpus: P.
        tables: ``{"Unidirectional P2P=Enabled Bandwidth": ..., "P2P=Enabled Latency GPU": ...}``; GB/s, us.
        lines: The line of the header of each, where it was read; row r is r + 1 below it.
    """

    num_gpus: int
    tables: Mapping[str, NDArray[np.float64]]
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def bandwidth(self) -> NDArray[np.float64]:
        """GB/s that one sender alone reaches towards one receiver, with peer access wherever there is any."""
        for access in ("Enabled", "Disabled"):
            name = f"Unidirectional P2P={access} Bandwidth"
            if name in self.tables:
                return self.tables[name]
        raise ValueError(f"the tables have no unidirectional bandwidths (got {', '.join(self.tables)})")

    @property
    def connected(self) -> NDArray[np.float64] | None:
        """1 where peer access is possible, 0 where not; None where the run does not say."""
        return self.tables.get("P2P Connectivity")


def parse_p2p_tables(text: str) -> P2pTables:
    """Read what p2pBandwidthLatencyTest printed; one table is enough.

    Raises:
        ValueError: Cut off, garbled or contradicting itself; names the line and the reason.
    """
    lines = text.splitlines()
    tables: dict[str, NDArray[np.float64]] = {}
    starts: dict[str, int] = {}
    title, number, size = "", 0, 0
    announced = False  # whether the table of the last title is still to come
    while number <= len(lines):
        line = lines[number].rstrip() if number < len(lines) else ""
        words = line.split()
        number += 1
        match = _TITLE.fullmatch(line.strip())
        if announced and (match or number > len(lines)):
            raise ValueError(
                f"line {min(number, len(lines))}: the table that the title {title!r} announces is missing"
            )
        if match:
            title, announced = match[1], True
        elif words and words[0] in _CORNERS:
            if not title or ("Latency" in title) == (words[0] == r"D\D"):
                raise ValueError(f"line {number}: a table of {words[0]} below the title {title!r}")
            name = title + _CORNERS[words[0]]
            if name in tables:
                raise ValueError(f"line {number}: the table {name!r} is there a second time")
            count = len(words) - 1
            if words[1:] != [str(index) for index in range(count)] or not 0 < count < _MOST_GPUS:
                raise ValueError(
                    f"line {number}: the columns must be 0 1 2 ... (got {shown(' '.join(words[1:]))})"
                )
            if size not in (0, count):
                raise ValueError(f"line {number}: a table of {count} GPUs, where others have {size}")
            rows = lines[number : number + count]
            table = [_row(row, number + 1 + index, index, name, count) for index, row in enumerate(rows)]
            if len(rows) < count:
                raise ValueError(
                    f"line {len(lines)}: the text ends after {len(rows)} of {count} rows of {name!r} of line {number}"
                )
            tables[name], starts[name], size, announced = np.array(table), number, count, False
            number += count
        elif not _PROSE.fullmatch(line) and not _is_command(line):
            raise ValueError(
                f"line {number}: expected a table of bandwidths or latencies (got {shown(line)})"
            )
    if not tables:
        raise ValueError("holds no table of p2pBandwidthLatencyTest")
    return P2pTables(size, tables, starts)


def _is_command(line: str) -> bool:
    """Whether a line runs the test: by a path (``./p2pBandwidthLatencyTest``), or behind a prompt."""
    before, command, _ = line.rpartition("p2pBandwidthLatencyTest")
    return bool(command) and before.endswith(("/", "# ", "$ "))


def _row(line: str, number: int, index: int, name: str, count: int) -> list[float]:
    words = line.split()
    if words[:1] != [str(index)]:
        raise ValueError(f"line {number}: expected row {index} of {name!r} (got {shown(line.strip())})")
    if len(words) != count + 1:
        raise ValueError(
            f"line {number}: row {index} of {name!r} has {len(words) - 1} numbers for {count} columns"
        )
    access = name == "P2P Connectivity"
    for word in words[1:]:
        if not (word in ("0", "1") if access else _NUMBER.fullmatch(word) and 0 < float(word) < math.inf):
            what = "0 or 1" if access else "a positive number"
            raise ValueError(f"line {number}: row {index} of {name!r} must hold {what} (got {shown(word)})")
    return [float(word) for word in words[1:]]
