"""Writes result files so that each appears whole or not at all, and checks output options before anything runs.

A file is written beside its place under another name, and then renamed; through a symlink its target is replaced. Pipes
and devices such as ``/dev/stdout`` are written to directly. Several results of one command appear together, or none.

Called by `plan`, `partition`, `bench`, `simulate`, `plans` and others. Free to change while a failure leaves the old
file and nothing else, and an output that is an input or a folder is refused at once
(`tests/dgcl/cli/test_files.py`).
"""

import argparse
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from dgcl.cli.command_errors import CliError, one_line

Results: TypeAlias = Sequence[tuple[str, str | None, Callable[[Path], object]]]


def check_output(option: str, path: str | None, inputs: dict[str, str | None]) -> None:
    """Refuse an output that cannot work before anything is computed: a folder, no folder, an input."""
    if path is None:
        return
    target = Path(os.path.realpath(path))
    special = _is_special(path)
    if target.is_dir() or path.endswith(os.sep):
        raise CliError(f"{option} {path}: is a folder, name a file")
    if target.is_symlink():
        raise CliError(f"{option} {path}: is a link that leads to itself, name a file")
    if not special and not target.parent.is_dir():
        raise CliError(f"{option} {path}: there is no folder {target.parent}")
    if not os.access(path if special else target.parent, os.W_OK):
        raise CliError(f"{option} {path}: no permission to write there")
    for name, other in inputs.items():
        if other is not None and os.path.realpath(other) == str(target):
            raise CliError(f"{option} {path}: is also {name}, name another file")


def check_outputs(args: argparse.Namespace, names: str, inputs: dict[str, str | None]) -> None:
    """Check the output options that are named; none may be an input or another of them. ``plot`` is a picture."""
    for name in names.split():
        path = getattr(args, name.replace("-", "_"))
        (check_picture if name == "plot" else check_output)(f"--{name}", path, inputs)
        inputs = {**inputs, f"--{name}": path}


def check_picture(option: str, path: str | None, inputs: dict[str, str | None]) -> None:
    """As :func:`check_output`, of a picture, whose suffix says its format."""
    from dgcl.topology.plot import FORMATS

    if path is not None and not path.lower().endswith(FORMATS):
        raise CliError(f"{option} must end in {', '.join(FORMATS)} (got {path!r})")
    check_output(option, path, inputs)


@contextmanager
def replacing(path: str) -> Iterator[Path]:
    """Give a temporary file beside ``path`` that becomes ``path`` if the block succeeds, and else vanishes.

    A device or pipe (``/dev/null``, ``/dev/stdout``) is not replaced: it is given itself.
    """
    if _is_special(path):  # by its own name: that of a pipe behind /dev/stdout leads nowhere
        yield Path(path)
        return
    target = Path(os.path.realpath(path))  # through a symlink: its target is replaced, not the link
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # the user's umask decides
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or one_line(error)}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_all(results: Results) -> None:
    """Write (what, path, writer) of files that were asked for: all of them appear, or none."""
    with ExitStack() as outputs:
        for _, path, write in results:
            if path is not None:
                write(outputs.enter_context(replacing(path)))


def _is_special(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
