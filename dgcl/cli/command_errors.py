"""Errors of commands, and a context that turns whatever goes wrong in reading a file into one.

A `CliError` ends a command with one line on standard error and an exit status: 2, bad input, unless it says another.
`dgcl/cli/__init__` prints it. Within ``reading`` every exception counts: the bytes are a stranger's.

Called by most modules of this folder, such as `arguments`, `problem`, `plans`, `result_files` and `check`. Free to
change while damaged files of each kind give status 2 and one line with the file's name, and no traceback
(`tests/dgcl/cli/test_bad_input.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager


class CliError(ValueError):
    """Ends a command with one line on standard error and an exit status.

    ``prog`` names the command the line starts with, where it is not the one that is running.
    """

    def __init__(self, message: str, *, status: int = 2, prog: str | None = None):
        super().__init__(one_line(message))
        self.status = status
        self.prog = prog


def one_line(error: object) -> str:
    """The message of an error without line breaks; a system error as "path: reason" without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    text = " ".join(str(error).split())
    return text or type(error).__name__


@contextmanager
def reading(path: object, what: str, passing: type[Exception] = CliError) -> Iterator[None]:
    """Turn whatever goes wrong while ``path`` is read as ``what`` into one line that names both.

    Everything is caught on purpose: the bytes are a stranger's, and the decoders below (zip, zlib, numpy,
    json, text) have a dozen ways of saying that they are not what they should be. Errors of the type
    ``passing`` are left alone.
    """
    try:
        yield
    except (CliError, passing):
        raise
    except OSError as error:
        raise CliError(f"{what} {path}: {error.strerror}" if error.strerror else one_line(error)) from error
    except Exception as error:
        raise CliError(f"{what} {path}: {one_line(error).removeprefix(f'{path}: ')}") from error
