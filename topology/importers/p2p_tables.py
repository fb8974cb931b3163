"""Tables of CUDA's p2pBandwidthLatencyTest: measured rates between every two GPUs.

    Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
       D\\D     0      1
         0 802.93  26.33
         1  26.32 833.33

The row is the sender, the column the receiver, the diagonal a GPU's own memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

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
_COMMAND = "p2pBandwidthLatencyTest"
_MOST_BYTES = 16 << 20
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
    if len(text) > _MOST_BYTES:
        raise ValueError("is larger than 16 MB, too large for p2pBandwidthLatencyTest")
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(line.rstrip(), number)
    return reader.finish()


def _is_command(line: str) -> bool:
    """Whether a line runs the test: by a path (``./p2pBandwidthLatencyTest``), or behind a prompt."""
    before, found, _ = line.rpartition(_COMMAND)
    return bool(found) and (f"/{_COMMAND}" in line or "# " in before or "$ " in before)


class _Reader:
    def __init__(self) -> None:
        self._tables: dict[str, NDArray[np.float64]] = {}
        self._lines: dict[str, int] = {}
        self._title = ""
        self._name = ""
        self._columns = 0
        self._rows: list[list[float]] = []
        self._start = 0
        self._line = 0

    def take(self, line: str, number: int) -> None:
        self._line = number
        words = line.split()
        match = _TITLE.fullmatch(line.strip())
        if self._columns and len(self._rows) < self._columns:
            self._row(words, number)
        elif match:
            self._check_title_has_table(number)
            self._title, self._name = match[1], ""
        elif words and words[0] in _CORNERS:
            self._open(words, number)
        elif not _PROSE.fullmatch(line) and not _is_command(line):
            raise ValueError(
                f"line {number}: expected a table of bandwidths or latencies (got {shown(line)})"
            )

    def _open(self, words: list[str], number: int) -> None:
        if not self._title:
            raise ValueError(f"line {number}: a table without a title above it")
        latency = "Latency" in self._title
        if latency == (words[0] == r"D\D"):
            raise ValueError(f"line {number}: a table of {words[0]} below the title {self._title!r}")
        self._name = self._title + _CORNERS[words[0]]
        if self._name in self._tables:
            raise ValueError(f"line {number}: the table {self._name!r} is there a second time")
        if words[1:] != [str(index) for index in range(len(words) - 1)] or not 1 < len(words) <= _MOST_GPUS:
            raise ValueError(
                f"line {number}: the columns must be 0 1 2 ... (got {shown(' '.join(words[1:]))})"
            )
        sizes = {len(table) for table in self._tables.values()}
        if sizes and len(words) - 1 not in sizes:
            raise ValueError(
                f"line {number}: a table of {len(words) - 1} GPUs, where others have {sizes.pop()}"
            )
        self._columns, self._rows, self._start = len(words) - 1, [], number

    def _row(self, words: list[str], number: int) -> None:
        index = len(self._rows)
        if not words or words[0] != str(index):
            got = shown(" ".join(words)) if words else "an empty line"
            raise ValueError(f"line {number}: expected row {index} of {self._name!r} (got {got})")
        if len(words) != self._columns + 1:
            raise ValueError(
                f"line {number}: row {index} of {self._name!r} has {len(words) - 1} numbers for "
                f"{self._columns} columns"
            )
        values = []
        for word in words[1:]:
            value = float(word) if _NUMBER.fullmatch(word) else math.nan
            zero = self._title == "P2P Connectivity"
            if not (math.isfinite(value) and (value in (0, 1) if zero else value > 0)):
                what = "0 or 1" if zero else "a positive number"
                raise ValueError(
                    f"line {number}: row {index} of {self._name!r} must hold {what} (got {shown(word)})"
                )
            values.append(value)
        self._rows.append(values)
        if len(self._rows) == self._columns:
            self._tables[self._name] = np.array(self._rows)
            self._lines[self._name] = self._start
            self._columns = 0

    def _check_title_has_table(self, number: int) -> None:
        if self._title and not self._name:
            raise ValueError(f"line {number}: the table that the title {self._title!r} announces is missing")

    def finish(self) -> P2pTables:
        if self._columns:
            raise ValueError(
                f"line {self._line}: the text ends after {len(self._rows)} of {self._columns} rows of "
                f"{self._name!r} of line {self._start}"
            )
        self._check_title_has_table(self._line)
        if not self._tables:
            raise ValueError("holds no table of p2pBandwidthLatencyTest")
        sizes = {len(table) for table in self._tables.values()}
        return P2pTables(
            sizes.pop(), MappingProxyType(dict(self._tables)), MappingProxyType(dict(self._lines))
        )
