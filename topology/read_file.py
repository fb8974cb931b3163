"""Reads whole files that a user named: regular files and standard input, up to a size."""

from __future__ import annotations

import os
import stat


def read_file(path: str, most_bytes: int) -> bytes | None:
    """Return the bytes of a file; None if there are more than ``most_bytes``.

    Only regular files and standard input (``/dev/stdin``) are read: a named pipe would be waited for, and a device
    may never end.

    Raises:
        OSError: The file cannot be opened or read, or is of another kind.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # does not wait for a pipe's writer
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(None, "Is a directory")
        if not stat.S_ISREG(found.st_mode) and not _is_stdin(found):
            raise OSError(None, "it is not a regular file; what a program prints can come from /dev/stdin")
        os.set_blocking(descriptor, True)
        data = file.read(most_bytes + 1)
    return None if len(data) > most_bytes else data


def _is_stdin(found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, os.fstat(0))
    except OSError:  # standard input is closed
        return False
