"""Reads edges from text: SNAP-style edge lists and Matrix Market files, plain or compressed.

Headers of SNAP, KONECT and Matrix Market may say that a line stands for both directions. Errors name the file and the
line.
Called by `graph_files` and `metis_text`. Free to change while lines, headers and compressed files give the same edges,
as networkx and scipy read them, and errors name the line (`tests/dgcl/graph/test_edge_text.py`).
"""

import bz2
import gzip
import io
import itertools
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.topology.read_file import open_file

#: What opens a compressed file, by its first three bytes.
UNPACKERS: dict[bytes, Any] = {b"\x1f\x8b\x08": gzip.open, b"BZh": bz2.open, b"\xfd7z": lzma.open}
#: What SNAP and KONECT say in comments above the edges.
UNDIRECTED = re.compile(r"^\s*(#\s*undirected\b|%\s*sym\b)", re.IGNORECASE | re.MULTILINE)
TWO_SETS = re.compile(r"^\s*%\s*bip\b", re.IGNORECASE | re.MULTILINE)
#: (vertices, edges) of SNAP's, (edges, vertices) of KONECT's.
ANNOUNCED = re.compile(
    r"^\s*#\s*nodes:\s*(\d+)\s+edges:\s*(\d+)|^\s*%\s*a?sym\b.*\n\s*%\s*(\d+)\s+(\d+)",
    re.IGNORECASE | re.MULTILINE,
)
#: ``n m`` or ``n n m``.
COUNTS = re.compile(r"\s*(\d{1,17})(?:[\s,]+\1)?[\s,]+([1-9]\d{0,17})\s*", re.ASCII)
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
        first_id: what the file calls vertex 0.
    """

    src: NDArray[Any]
    dst: NDArray[Any]
    num_nodes: int | None
    symmetric: bool
    first_id: int = 0


@contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, unpacked if it is gzip, bzip2 or xz, whatever its name.

    Raises:
        ValueError: damaged compressed data, while opening or reading.
        OSError: the file cannot be read.
    """
    with open_file(path) as file:
        unpack = UNPACKERS.get(file.read(3))
        file.seek(0)
        if unpack is None:
            yield file
            return
        try:
            with unpack(file) as unpacked:
                yield unpacked
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{os.fspath(path)}: damaged {unpack.__module__} data ({error})") from None


def read_edge_list(
    path: str | os.PathLike[str], num_nodes: int | None = None, *, counts: bool = False
) -> TextEdges:
    """Read lines ``u v``: one edge u -> v each, ids as they are.

    ``#`` begins a comment, as ``%`` does at the start of a line before the first edge. Columns are separated by
    blanks and tabs, or by commas; those after the second (weights, times) are not read.

    A header ``# Undirected graph`` (SNAP's) or ``% sym`` (KONECT's) says that each line stands for both directions.

    Args:
        path: the file, compressed or not.
        num_nodes: if given, ids must be smaller.
        counts: whether a first line ``n m`` or ``n n m`` above m edges of n vertices is no edge. Where n is an id and 0
            is not, ids are from 1.

    Raises:
        ValueError: the message names file and line.
        OSError: the file cannot be read.
    """
    with read_lines(path) as lines:
        header = "".join(itertools.takewhile(lambda line: not _is_content(line), lines))
    symmetric, line = UNDIRECTED.search(header) is not None, header.count("\n")
    if TWO_SETS.search(header):
        raise ValueError(
            f"{os.fspath(path)}: has two sets of vertices ('% bip'), each with ids from 1; make them one: u, v ="
            f" np.loadtxt({os.fspath(path)!r}, int, comments='%', usecols=(0, 1)).T - 1;"
            " dgcl.graph.as_graph([u, v + u.max() + 1])"
        )
    edges = _below_counts(path, line, symmetric) if counts else None
    if edges is None:
        edges = TextEdges(*_parse(path, comment="#", high=num_nodes), num_nodes, symmetric)
    announced = ANNOUNCED.search(header)
    if announced and len(edges.src):
        num_nodes, num_edges = int(announced[1] or announced[4]), int(announced[2] or announced[3])
        ids = np.unique(np.concatenate([edges.src, edges.dst]))
        from_1 = ids[-1] + (ids[0] == 0)  # then the largest is their number
        if num_edges != len(edges.src) or num_nodes not in (edges.num_nodes, len(ids), ids[-1] + 1, from_1):
            warnings.warn(
                f"{os.fspath(path)}: a comment announces {num_nodes} vertices and {num_edges} edges, but there are"
                f" {len(edges.src)} edges, of {len(ids)} vertices; num_nodes (--num-nodes) adds some without edges",
                stacklevel=4,
            )
    return edges


def _below_counts(path: str | os.PathLike[str], skipped: int, symmetric: bool) -> TextEdges | None:
    """The edges below a first line of counts; None: it is an edge itself."""
    with read_lines(path) as lines:
        counts = COUNTS.fullmatch(next(itertools.islice(lines, skipped, None), ""))
        if counts is None:
            return None
        num_nodes, num_edges = map(int, counts.groups())
        if sum(1 for _ in itertools.islice(filter(_is_content, lines), num_edges + 1)) != num_edges:
            return None
    for low in 0, 1:
        with suppress(ValueError):
            ids = _parse(path, comment="#", low=low, high=num_nodes + low, skipped=skipped + 1)
            return TextEdges(*ids, num_nodes, symmetric, low)
    return None


def read_matrix_market(path: str | os.PathLike[str]) -> TextEdges:
    """Read a Matrix Market file in coordinate format: entry (u, v), counted from 1, is the edge u-1 -> v-1.

    Values are not read, so an explicit zero is an edge. A symmetric, skew-symmetric or hermitian file stores
    one of the two directions.

    Raises:
        ValueError: the message names file and line.
        OSError: the file cannot be read.
    """
    with read_lines(path) as lines:
        field, symmetry = _read_banner(path, next(lines, ""))
        line = 2
        for sizes in lines:
            if _is_content(sizes):
                break
            line += 1
        else:
            raise error_at(path, line, "the file ends before the line of sizes, 'rows columns entries'")
    words = sizes.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise error_at(path, line, f"expected three sizes, 'rows columns entries' (got {shown_line(sizes)})")
    rows, columns, entries = map(int, words)
    if rows == 0:
        raise error_at(path, line, "the matrix has no rows; a graph needs a vertex")
    if rows != columns:
        raise error_at(path, line, f"the matrix must be square: one row per vertex (got {rows} x {columns})")
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
        raise error_at(
            path, 1, f"expected '%%MatrixMarket matrix coordinate FIELD SYMMETRY' (got {shown_line(banner)})"
        )
    for what, word, known in zip(
        ("format", "field", "symmetry"),
        words[2:],
        (["coordinate"], MARKET_COLUMNS, MARKET_SYMMETRIES),
        strict=True,
    ):
        if word not in known:
            raise error_at(path, 1, f"the {what} must be one of {', '.join(map(repr, known))} (got {word!r})")
    return words[3], words[4]


@contextmanager
def read_lines(path: str | os.PathLike[str]) -> Iterator[Iterator[str]]:
    """The lines of a text file, whatever ends them."""
    with open_text(path) as file:
        yield io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")


def _is_content(line: str) -> bool:
    """Whether a line is neither blank nor a comment."""
    return line.lstrip()[:1] not in ("", "#", "%")


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
        with read_lines(path) as lines, warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy takes 1.0 for a whole number, and warns
            first = next(filter(_is_content, itertools.islice(lines, skipped, None)), "")
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
    with read_lines(path) as lines:
        for number, line in enumerate(itertools.islice(lines, skipped, None), skipped + 1):
            if "\0" in line:
                return ValueError(f"{os.fspath(path)}: not a text file (it has zero bytes)")
            words = line.partition(comment)[0].replace(",", " ").split()
            if not words or words[0].startswith("%"):
                continue
            ids = [int(word) for word in words[:2] if re.fullmatch(r"-?[0-9]+", word)]
            for wrong, problem in (
                (
                    len(ids) < len(words[:2]),
                    "expected two vertex ids, whole numbers {}; comments start with #",
                ),
                (len(ids) < 2, "expected two vertex ids, 'source destination' {}"),
                (columns == 2 < len(words), "expected 2 columns as before {}"),
                (min(ids, default=0) < 0, "vertex ids must not be negative {}"),
                (max(ids, default=0) >= 2**63, "a vertex id must be less than 2**63 {}"),
                (not all(low <= id < high for id in ids), f"vertex ids must be {low}..{high - 1} {{}}"),
            ):
                if wrong:
                    return error_at(path, number, problem.format(f"(got {shown_line(line)})"))
    return ValueError(f"{os.fspath(path)}: lines must all be 'source destination', with the same separator")


def shown_line(line: str) -> str:
    """A line as it may stand in a message."""
    text = line.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def error_at(path: str | os.PathLike[str], line: int, problem: str) -> ValueError:
    """An error with file and line in front, as compilers have it."""
    return ValueError(f"{os.fspath(path)}:{line}: {problem}")
