"""Edges from text: SNAP-style edge lists and Matrix Market files, plain or gzipped.

Errors name the file and the line.
"""

import gzip
import io
import itertools
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.read_file import open_file

GZIP_MAGIC = b"\x1f\x8b"
UNDIRECTED = re.compile(r"\s*(#\s*undirected\b|%\s*sym\b)", re.IGNORECASE)
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
    with open_file(path) as file:
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

    ``#`` begins a comment, as ``%`` does at the start of a line before the first edge. Columns are separated by
    blanks and tabs, or by commas; those after the second (weights, times) are not read.

    A header ``# Undirected graph`` (SNAP's) or ``% sym`` (KONECT's) says that each line stands for both directions.

    Args:
        path: the file, gzipped or not.
        num_nodes: if given, ids must be smaller.

    Raises:
        ValueError: the message names file and line.
        OSError: the file cannot be read.
    """
    src, dst = _parse(path, comment="#", high=num_nodes)
    with _lines(path) as lines:
        header = itertools.takewhile(lambda line: not line.strip() or line.lstrip()[0] in "#%", lines)
        symmetric = any(UNDIRECTED.match(line) for line in header)
    return TextEdges(src, dst, num_nodes, symmetric)


def read_matrix_market(path: str | os.PathLike[str]) -> TextEdges:
    """Read a Matrix Market file in coordinate format: entry (u, v), counted from 1, is the edge u-1 -> v-1.

    Values are not read, so an explicit zero is an edge. A symmetric, skew-symmetric or hermitian file stores
    one of the two directions.

    Raises:
        ValueError: the message names file and line.
        OSError: the file cannot be read.
    """
    with _lines(path) as lines:
        field, symmetry = _read_banner(path, next(lines, ""))
        line, sizes = _first_line(lines, 2)
    words = sizes.split()
    if not words:
        raise _at(path, line, "the file ends before the line of sizes, 'rows columns entries'")
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise _at(path, line, f"expected three sizes, 'rows columns entries' (got {_shown(sizes)})")
    rows, columns, entries = map(int, words)
    if rows == 0:
        raise _at(path, line, "the matrix has no rows; a graph needs a vertex")
    if rows != columns:
        raise _at(path, line, f"the matrix must be square: one row per vertex (got {rows} x {columns})")
    src, dst = _parse(path, comment="%", columns=MARKET_COLUMNS[field], low=1, high=rows + 1, skipped=line)
    if len(src) != entries:
        raise ValueError(
            f"{os.fspath(path)}: line {line} promises {entries} entries, but there are {len(src)}"
        )
    return TextEdges(src, dst, rows, symmetric=symmetry != "general")


def _read_banner(path: str | os.PathLike[str], banner: str) -> tuple[str, str]:
    """Field and symmetry, of a Matrix Market file's first line."""
    words = banner.lower().split()
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


@contextmanager
def _lines(path: str | os.PathLike[str]) -> Iterator[Iterator[str]]:
    """The lines of a text file, whatever ends them."""
    with open_text(path) as file:
        yield io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")


def _first_line(lines: Iterator[str], begin: int) -> tuple[int, str]:
    """Number and text of the first line that is neither blank nor a comment; "" if there is none."""
    number = begin - 1
    for number, line in enumerate(lines, begin):
        if line.strip() and line.lstrip()[0] not in "#%":
            return number, line
    return number + 1, ""


def _parse(
    path: str | os.PathLike[str],
    *,
    comment: str,
    columns: int = 0,
    low: int = 0,
    high: int | None,
    skipped: int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read the edges after the first ``skipped`` lines; ids are stored less ``low``, as int32 if they fit.

    Args:
        path: the file.
        comment: the character that begins a comment.
        columns: how many columns each line must have; 0: as many as the first line has.
        low, high: the smallest id, and one more than the largest; None: any.
        skipped: lines that are no edges.

    Raises:
        ValueError: the message names file and line.
    """
    limits = low, 2**63 if high is None else high
    for dtype in (np.int32, np.int64):
        with _lines(path) as lines, warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy takes 1.0 for a whole number, and warns
            _, first = _first_line(itertools.islice(lines, skipped, None), 0)
            if not first:
                return np.empty(0, np.int32), np.empty(0, np.int32)
            delimiter = "," if "," in first else None
            columns = columns or len(first.partition(comment)[0].replace(",", " ").split())
            used = (0, 1) if columns > 2 else None
            try:
                pairs: NDArray[Any] = np.loadtxt(
                    itertools.chain([first], lines),
                    dtype,
                    comments=comment,
                    delimiter=delimiter,
                    usecols=used,
                    ndmin=2,
                )
            except (ValueError, DeprecationWarning):
                continue
        if pairs.shape[1] == 2 and pairs.min() >= limits[0] and pairs.max() < limits[1]:
            pairs -= low
            src, dst = np.ascontiguousarray(pairs.T)
            return src, dst
        break
    raise _first_error(path, comment, columns, *limits, skipped)


def _first_error(
    path: str | os.PathLike[str], comment: str, columns: int, low: int, high: int, skipped: int
) -> ValueError:
    """What is wrong with the first line that does not hold an edge; arguments as of :func:`_parse`."""
    with _lines(path) as lines:
        for number, line in enumerate(itertools.islice(lines, skipped, None), skipped + 1):
            if "\0" in line:
                return ValueError(f"{os.fspath(path)}: not a text file (it has zero bytes)")
            words = line.partition(comment)[0].replace(",", " ").split()
            if not words or words[0].startswith("%"):
                continue
            got = f"(got {_shown(line)})"
            if not all(re.fullmatch(r"-?[0-9]+", word) for word in words[:2]):
                return _at(
                    path, number, f"expected two vertex ids, whole numbers {got}; comments start with #"
                )
            if len(words) < 2:
                return _at(path, number, f"expected two vertex ids, 'source destination' {got}")
            if columns == 2 < len(words):
                return _at(path, number, f"expected 2 columns as before {got}")
            ids = [int(word) for word in words[:2]]
            if min(ids) < 0:
                return _at(path, number, f"vertex ids must not be negative {got}")
            if max(ids) >= 2**63:
                return _at(path, number, f"a vertex id must be less than 2**63 {got}")
            if not low <= min(ids) <= max(ids) < high:
                return _at(path, number, f"vertex ids must be {low}..{high - 1} {got}")
    return ValueError(f"{os.fspath(path)}: lines must all be 'source destination', with the same separator")


def _shown(line: str) -> str:
    """A line as it may stand in a message."""
    text = line.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _at(path: str | os.PathLike[str], line: int, problem: str) -> ValueError:
    """An error with file and line in front, as compilers have it."""
    return ValueError(f"{os.fspath(path)}:{line}: {problem}")
