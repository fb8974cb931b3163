"""Opens files that a user named, if they are regular files or standard input; refuses all else.

A named pipe would be waited for, and a device may never end.
Called by `json_io`, `topology/importers/files`, `planner/npz`, `dgcl/graph/edge_text`, `dgcl/prepare/part_files` and
others. Free to change while nothing else is opened (`tests/topology/importers/test_files.py`), and a file that is too
large is refused before it is read to its end (`tests/topology/test_limits.py`).
"""

import errno
import os
import stat
from typing import BinaryIO


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading.

    Only regular files and standard input (``/dev/stdin``) are opened: a named pipe would be waited for, and a device
    may never end.

    Raises:
        OSError: The file cannot be opened, or is of another kind; names it.
    """
    # Does not wait for a pipe's writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) and not _is_stdin(status):
        os.close(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", os.fspath(path))
        raise OSError(
            errno.EINVAL,
            "it is not a regular file; what a program prints can come from /dev/stdin",
            os.fspath(path),
        )
    os.set_blocking(descriptor, True)
    return open(descriptor, "rb")


def read_file(path: str, most_bytes: int, what: str, kind: str) -> bytes:
    """Return the bytes of a file that :func:`open_file` opens.

    Raises:
        OSError: It cannot be read; names it, as ``what``.
        ValueError: There are more than ``most_bytes``, too many for its ``kind``.
    """
    try:
        with open_file(path) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise type(error)(f"cannot read {what}{path!r}: {error.strerror or error}") from None
    if len(data) > most_bytes:
        raise ValueError(f"{path}: is larger than {most_bytes >> 20} MB, too large for {kind}")
    return data


def _is_stdin(status: os.stat_result) -> bool:
    try:
        return os.path.samestat(status, os.fstat(0))
    except OSError:  # standard input is closed
        return False
