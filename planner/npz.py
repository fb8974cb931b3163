"""Reads untrusted npz files, and writes npz files with the same bytes each time.

``numpy.load`` trusts an array's header, so a small file may ask for terabytes. Here the header is compared with the
bytes in the archive, and with the dtype and number of dimensions that the format prescribes, before anything is read.
Called by `plan`, `relation`, `dgcl/graph/graph_npz`, `dgcl/partition/streaming` and `dgcl/prepare/cache`. Free to
change while such headers are refused before memory is taken (`tests/planner/test_relations.py`), as are cut and
damaged files, and the same arrays give the same bytes (`tests/planner/test_plan_files.py`).
"""

import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dgcl.topology.checks import check_path
from dgcl.topology.read_file import open_file

_MAX_HEADER = 10_000  # bytes; ours take 128
# What numpy writes; read without Python's parser, which in CPython 3.11 fails by chance where several threads parse.
_HEADER = re.compile(
    r"\s*\{'descr': '(?P<descr>[<>|=]?[A-Za-z]\d*(?:\[\w+\])?)', 'fortran_order': (?P<fortran>True|False),"
    r" 'shape': \((?P<shape>|\d+,|\d+(?:, \d+)+),?\),? ?\}\s*"
)
_PIECE = 1 << 20  # bytes that are read at a time
_LONGEST_REASON = 120  # characters
_UNREADABLE = (ValueError, zlib.error, EOFError, NotImplementedError, RuntimeError, MemoryError, OSError)


@dataclass(frozen=True)
class ArraySpec:
    """What an array in a file must be.

    Attributes:
        dtype: "<i4" and the like, or "integer" or "unicode" for any of that kind.
        ndim: number of dimensions.
    """

    dtype: str
    ndim: int

    def accepts(self, dtype: np.dtype[Any]) -> bool:
        """Whether ``dtype`` is what the format prescribes."""
        if self.dtype == "integer":
            return dtype.kind in "iu"
        if self.dtype == "unicode":
            return dtype.kind == "U"
        return dtype == np.dtype(self.dtype)


def read_npz(
    path: str | os.PathLike[str], specs: Mapping[str, ArraySpec] | None, *, what: str, exact: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays named in ``specs`` from an npz file, without pickle.

    Args:
        path: the file.
        specs: the arrays that must be there, with their dtype and number of dimensions; None: all that are there.
        what: what the file should be ("plan", "relation"), for messages.
        exact: refuse arrays that ``specs`` does not name.

    Raises:
        ValueError: The file is not such an npz; names the file and the array.
        OSError: The file cannot be opened.
    """
    with open_file(check_path(path, "path")) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.namelist()
                expected: Mapping[str, ArraySpec | None] = specs or dict.fromkeys(
                    name.removesuffix(".npy") for name in members
                )
                _check_members(members, expected, exact)
                return {key: _read_member(archive, key, spec) for key, spec in expected.items()}
        except zipfile.BadZipFile as error:
            reason = str(error)  # may quote all that the file holds
            reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
            raise ValueError(f"{os.fspath(path)}: not a {what} file: not an npz archive ({reason})") from None
        except _UNREADABLE as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"{os.fspath(path)}: not a valid {what} file: {reason}") from None


def _check_members(members: list[str], specs: Mapping[str, Any], exact: bool) -> None:
    """Raise ValueError unless every expected array is there once (and, if ``exact``, nothing else)."""
    for key in specs:
        times = members.count(f"{key}.npy")
        if times > 1:
            raise ValueError(f"array {key!r} is there more than once")
        if times == 0:
            held = ", ".join(sorted(name.removesuffix(".npy") for name in members)) or "none"
            raise ValueError(f"array {key!r} is missing (the file has {held[:_LONGEST_REASON]})")
    if exact:
        unknown = sorted(set(members) - {f"{key}.npy" for key in specs})
        if unknown:
            raise ValueError(f"unknown entry {unknown[0]!r}; expected the arrays {', '.join(specs)}")


def _read_member(archive: zipfile.ZipFile, key: str, spec: ArraySpec | None) -> npt.NDArray[Any]:
    """Read one array, after checking its header against ``spec`` and against the bytes present."""
    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # what numpy writes
        raise ValueError(f"array {key!r} is compressed by method {info.compress_type}, not by deflate")
    with archive.open(info) as member:
        dtype, fortran, shape = _read_header(member, key)
        if spec is not None and not spec.accepts(dtype):
            raise ValueError(f"array {key!r} must have dtype {spec.dtype} (got {dtype.str})")
        if spec is not None and len(shape) != spec.ndim:
            raise ValueError(f"array {key!r} must have {spec.ndim} dimension(s) (got shape {shape})")
        need = math.prod(shape, start=dtype.itemsize)
        have = info.file_size - member.tell()
        if need != have:
            raise ValueError(f"array {key!r} of shape {shape} needs {need} bytes but the file holds {have}")
        data = np.empty(need, np.uint8)
        for start in range(0, need, _PIECE):  # to the end, where the archive's checksum is verified
            piece = np.frombuffer(member.read(_PIECE), np.uint8)
            data[start : start + len(piece)] = piece
    return np.ndarray(shape, dtype, data.data, order="F" if fortran else "C")


def _read_header(member: IO[bytes], key: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    """Return dtype, Fortran order and shape of an npy stream, leaving it at the first byte of data."""
    start = member.read(8)
    version = tuple(start[6:])
    if start[:6] != b"\x93NUMPY" or version not in ((1, 0), (2, 0)):
        raise ValueError(f"array {key!r} is not in npy format 1.0 or 2.0")
    length = int.from_bytes(member.read(2 if version == (1, 0) else 4), "little")
    if length > _MAX_HEADER:
        raise ValueError(f"array {key!r} has a header of {length} bytes")
    text = member.read(length).decode("latin1")
    header = _HEADER.fullmatch(text)
    try:
        if header is None:
            raise ValueError
        dtype = np.dtype(header["descr"])
        shape = tuple(int(size) for size in header["shape"].split(",") if size)
    except (ValueError, TypeError):
        raise ValueError(f"array {key!r} has no readable npy header") from None
    if dtype.hasobject:
        raise ValueError(f"array {key!r} has no usable npy header (dtype {dtype}, shape {shape})")
    return dtype, header["fortran"] == "True", shape


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as an npz at exactly ``path`` (numpy would add ".npz"): same arrays, same bytes.

    Numbers are not compressed. Text is: numpy takes four bytes for a character, and the links of a machine of a
    thousand devices are a hundred million characters that repeat themselves.
    """
    check_path(path, "path")
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device, in which zipfile cannot seek
        whole = io.BytesIO()
        _write(whole, arrays)
        with open(path, "wb") as file:
            file.write(whole.getbuffer())
    else:
        _write(path, arrays)


def _write(to: str | os.PathLike[str] | IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    with zipfile.ZipFile(to, "w") as archive:
        for key, array in arrays.items():
            info = zipfile.ZipInfo(f"{key}.npy")  # with the date of 1980, always
            info.compress_type = zipfile.ZIP_DEFLATED if array.dtype.kind == "U" else zipfile.ZIP_STORED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
