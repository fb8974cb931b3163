"""Edges from text: SNAP-style edge lists and Matrix Market files, plain or gzipped.

Errors name the file and the line.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MARKET_BANNER", "TextEdges", "open_text", "read_edge_list", "read_matrix_market"]

BLOCK = 1 << 23
GZIP_MAGIC = b"\x1f\x8b"
MARKET_BANNER = b"%%matrixmarket"
MARKET_COLUMNS = {"pattern": 2, "real": 3, "double": 3, "integer": 3, "complex": 4}
MARKET_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


@dataclass(frozen=True, eq=False)
class TextEdges:
    """What a text file says.

    Attributes:
        src, dst: (E,) int32 or int64, in the order of the lines.
        num_nodes: the number of vertices, where the file states it.
        symmetric: whether each line stands for both directions.
    """

    src: NDArray[Any]
    dst: NDArray[Any]
    num_nodes: int | None
    symmetric: bool


@contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, through gzip if it is gzipped, whatever its name.

    Raises:
        ValueError: damaged gzip data, while opening or reading.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        try:
            if packed:
                with gzip.open(file) as unpacked:
                    yield unpacked  # type: ignore[misc]  # a GzipFile reads bytes like any binary file
            else:
                yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{os.fspath(path)}: damaged gzip data ({error})") from None


def read_edge_list(path: str | os.PathLike[str], num_nodes: int | None = None) -> TextEdges:
    """Read lines ``u v``: one edge u -> v each, ids as they are.

    ``#`` or ``%`` at a line's start, and ``#`` anywhere, begin a comment. Columns may be separated by blanks,
    tabs or commas; those after the second (weights, times) are not read, but every line must have as many as
    the first.

    Args:
        path: the file, gzipped or not.
        num_nodes: if given, ids must be smaller.

    Raises:
        ValueError: the message names file and line.
        OSError: the file cannot be read.
    """
    with open_text(path) as file:
        src, dst = _parse(path, file, comment=b"#", high=-1 if num_nodes is None else num_nodes)
    return TextEdges(src, dst, num_nodes, symmetric=False)


def read_matrix_market(path: str | os.PathLike[str]) -> TextEdges:
    """Read a Matrix Market file in coordinate format: entry (u, v), counted from 1, is the edge u-1 -> v-1.

    Values are not read, so an explicit zero is an edge. A symmetric, skew-symmetric or hermitian file stores
    one of the two directions.

    Raises:
        ValueError: the message names file and line.
        OSError: the file cannot be read.
    """
    with open_text(path) as file:
        field, symmetry = _read_banner(path, file.readline())
        line, sizes = 1, b""
        while not sizes.strip():
            sizes = file.readline()
            line += 1
            if not sizes:
                raise _at(path, line, "the file ends before the line of sizes, 'rows columns entries'")
            if sizes.lstrip().startswith(b"%"):
                sizes = b""
        words = sizes.split()
        if len(words) != 3 or not all(word.isdigit() for word in words):
            raise _at(path, line, f"expected three sizes, 'rows columns entries' (got {_shown(sizes)})")
        rows, columns, entries = map(int, words)
        if rows == 0:
            raise _at(path, line, "the matrix has no rows; a graph needs a vertex")
        if rows != columns:
            raise _at(path, line, f"the matrix must be square: one row per vertex (got {rows} x {columns})")
        src, dst = _parse(
            path,
            file,
            comment=b"%",
            columns=MARKET_COLUMNS[field],
            low=1,
            high=rows + 1,
            first_line=line + 1,
            most=entries,
        )
    if len(src) != entries:
        raise ValueError(
            f"{os.fspath(path)}: line {line} promises {entries} entries, but there are {len(src)}"
        )
    return TextEdges(src, dst, rows, symmetric=symmetry != "general")


def _read_banner(path: str | os.PathLike[str], banner: bytes) -> tuple[str, str]:
    """Field and symmetry, of a Matrix Market file's first line."""
    words = banner.decode("ascii", "replace").lower().split()
    if len(words) != 5 or words[0].encode() != MARKET_BANNER or words[1] != "matrix":
        raise _at(
            path, 1, f"expected '%%MatrixMarket matrix coordinate FIELD SYMMETRY' (got {_shown(banner)})"
        )
    _, _, form, field, symmetry = words
    if form != "coordinate":
        raise _at(path, 1, f"the format must be 'coordinate', a list of entries (got {form!r})")
    if field not in MARKET_COLUMNS:
        raise _at(path, 1, f"the field must be one of {', '.join(MARKET_COLUMNS)} (got {field!r})")
    if symmetry not in MARKET_SYMMETRIES:
        raise _at(path, 1, f"the symmetry must be one of {', '.join(MARKET_SYMMETRIES)} (got {symmetry!r})")
    return field, symmetry


def _parse(
    path: str | os.PathLike[str],
    file: IO[bytes],
    *,
    comment: bytes,
    columns: int = 0,
    low: int = 0,
    high: int = -1,
    first_line: int = 1,
    most: int | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Parse the rest of a file; ids are stored less `low`, as int32 while they fit."""
    from dgcl.graph import text_kernels as kernels

    sources: list[NDArray[Any]] = []
    targets: list[NDArray[Any]] = []
    line, total = first_line, 0
    src, dst = np.empty(BLOCK // 4 + 1, np.int64), np.empty(BLOCK // 4 + 1, np.int64)
    for block in _whole_lines(path, file):
        text = np.frombuffer(block, np.uint8)
        if len(src) < len(text) // 4 + 1:  # an edge takes at least four bytes, "0 1\n"
            src, dst = np.empty(len(text) // 4 + 1, np.int64), np.empty(len(text) // 4 + 1, np.int64)
        capacity = len(src) if most is None else min(len(src), most - total)
        count, lines, columns, error, start = kernels.parse_edges(
            text, comment[0], columns, low, high, src[:capacity], dst[:capacity]
        )
        if error != kernels.OK:
            raise _at(path, line + lines - 1, _reason(error, block[start:], columns, low, high, most))
        line += lines
        total += count
        sources.append(_narrow(src[:count]))
        targets.append(_narrow(dst[:count]))
    none = [np.empty(0, np.int32)]
    return np.concatenate(sources or none), np.concatenate(targets or none)


def _whole_lines(path: str | os.PathLike[str], file: IO[bytes]) -> Iterator[bytes]:
    """The file in blocks that end with a newline, but for the last."""
    rest, first = b"", True
    while block := file.read(BLOCK):
        if first:
            block, first = block.removeprefix(b"\xef\xbb\xbf"), False  # the mark that begins some UTF-8 files
        if b"\0" in block:
            raise ValueError(f"{os.fspath(path)}: not a text file (it has zero bytes)")
        block = rest + block
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if end:
            yield block[:end]
    if rest:
        yield rest


def _narrow(ids: NDArray[np.int64]) -> NDArray[Any]:
    """A copy, of half the size if the ids allow."""
    return ids.astype(np.int32 if len(ids) == 0 or ids.max() < 2**31 else np.int64)


def _reason(error: int, rest: bytes, columns: int, low: int, high: int, most: int | None) -> str:
    """What is wrong with the line that `rest` begins with."""
    from dgcl.graph import text_kernels as kernels

    got = f"(got {_shown(rest.splitlines()[0])})"
    return {
        kernels.NOT_AN_ID: f"expected two vertex ids, whole numbers {got}; comments start with #",
        kernels.TOO_FEW: f"expected two vertex ids, 'source destination' {got}",
        kernels.NEGATIVE: f"vertex ids must not be negative {got}",
        kernels.TOO_LARGE: f"a vertex id must be less than 2**63 {got}",
        kernels.OUT_OF_RANGE: f"vertex ids must be {low}..{high - 1} {got}",
        kernels.COLUMNS: f"expected {columns} columns as before {got}",
        kernels.TOO_MANY: f"there are more than the {most} entries that the file promises {got}",
    }[error]


def _shown(line: bytes) -> str:
    """A line as it may stand in a message."""
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _at(path: str | os.PathLike[str], line: int, problem: str) -> ValueError:
    """An error with file and line in front, as compilers have it."""
    return ValueError(f"{os.fspath(path)}:{line}: {problem}")
