"""Keeps compiled machine code on disk, where ranks share it; one process compiles an entry while others wait.

An entry is a file: a line of JSON (the stamp of its sources, the digest of what follows), then what numba pickled. It
is unpickled only if the digest is right, and only if no other user can have written it: the file and its folder belong
to this user or to root, and neither they nor a folder on the way can be changed by others.
Called by `compiled`. Free to change while damaged or foreign entries are never run, and a compiler that dies blocks
nobody (`tests/kernels/test_kernel_cache.py`); what the stamp covers: `tests/test_cached_code.py`.
"""

import fcntl
import functools
import hashlib
import importlib
import inspect
import json
import logging
import os
import pickle
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import config
from numba.core.caching import _CacheLocator
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.serialize import dumps

_log = logging.getLogger("dgcl")

_POLL_SECONDS = 0.02
_QUIET_SECONDS = 1.5  # what may be waited for without a word

_Need = tuple[str, str, tuple[Any, ...]]  # module and name of a function, the types for which it is compiled
_called_by_symbol: dict[str, _Need] = {}  # symbols that compiled code of this process may call


class KernelCache:
    """The cache entries of one function, in the place of numba's own: read from any folder, written to the first."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._source = function, inspect.getfile(function)
        _file_hash(self._source)  # of what is imported at this moment, not of what it may be edited to later
        self._name = (
            f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-{function.__code__.co_firstlineno}"
            f".py{sys.version_info.major}{sys.version_info.minor}"
        )
        self._lock: int | None = None

    @functools.cached_property
    def _stamp(self) -> str:
        # Not when the function is decorated: by now its module has been imported to the end.
        return f"numba {numba.__version__}, {sources_digest(self._function.__module__, self._source)}"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the machine code for ``signature``, or None: then this process holds the lock, and shall compile."""
        target_context.refresh()
        name = self._entry(signature, target_context.codegen())
        result = self._load(name, target_context)
        if result is None:
            folder = self._wait_for_lock()
            result = self._load(name, target_context)
            if result is None and folder is not None:
                _show(
                    "compiling kernels for this machine, once: 15 s for exchanges, a minute for planning (kept in"
                    f" {folder})"
                )
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write machine code into the first folder that takes it."""
        if result.library.has_dynamic_globals:  # addresses of this process
            return
        code = dumps((_needs(result.library), result._reduce()))
        # With a stamp of its own: another process may put the code of older sources in its place.
        header = json.dumps({"stamp": self._stamp, "sha256": hashlib.sha256(code).hexdigest()}).encode()
        name, problem = self._entry(signature, result.codegen), ""
        for folder in cache_folders(self._source):
            temporary = folder / f".{name}.{secrets.token_hex(4)}"
            try:
                _make(folder)
                with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), "wb") as file:
                    file.write(header + b"\n" + code)
                os.replace(temporary, folder / name)
            except OSError as error:
                with suppress(OSError):
                    temporary.unlink()
                problem = problem or str(error)
                continue
            if problem:
                _show(f"compiled kernels are kept in {folder} ({problem})")
            return
        _warn_of_no_place(problem)

    def is_filled(self) -> bool:
        """Return whether any machine code of the present sources is on disk."""
        folders = cache_folders(self._source)
        return any(
            self._read(path) is not None
            for folder in folders
            for path in folder.glob(f"{self._name}.*.kernel")
        )

    def unlock(self) -> None:
        """Let others compile this function, if this process holds its lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _entry(self, signature: Any, codegen: Any) -> str:
        """The name of the file for these types; functions of one definition have names of their own."""
        digest = hashlib.sha256(repr((signature, codegen.magic_tuple())).encode())
        digest.update(self._function.__code__.co_code)
        return f"{self._name}.{digest.hexdigest()[:20]}.kernel"

    def _load(self, name: str, target_context: Any) -> Any:
        for folder in cache_folders(self._source):
            code = self._read(folder / name)
            if (
                code is not None
            ):  # what is raised from here on is not the entry's: a signal handler's, for instance
                needs, reduced = pickle.loads(code)
                for module, function, types in needs:
                    getattr(importlib.import_module(module), function).compile(types)
                return CompileResult._rebuild(target_context, *reduced)
        return None

    def _read(self, path: Path) -> bytes | None:
        """The pickle in an entry that is whole, of the present sources and of nobody else."""
        if not os.path.isfile(path) or not _is_trusted(path.parent):
            return None
        try:
            with open(path, "rb") as file:
                _check_owner(path, os.fstat(file.fileno()))
                header, code = json.loads(file.readline()), file.read()
            if header["stamp"] != self._stamp:
                return None
            if header["sha256"] != hashlib.sha256(code).hexdigest():
                raise ValueError("its digest is wrong")
        except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
            _log.info("%s is damaged (%r) and compiled anew", path, error)
            return None
        return code

    def _wait_for_lock(self) -> Path | None:
        """Lock a file in the first folder that takes one, and return the folder. Without a lock everybody compiles."""
        for folder in cache_folders(self._source):
            try:
                _make(folder)
                path = folder / f"{self._name}.lock"
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                continue
            since = time.monotonic()
            while True:
                try:
                    # Not flock(), which a forked child would go on holding after this process has died.
                    fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return folder
                except (BlockingIOError, PermissionError):
                    if time.monotonic() - since > _QUIET_SECONDS:
                        _show(
                            f"waiting for kernels that another process compiles ({self._function.__name__})"
                        )
                    time.sleep(_POLL_SECONDS)
                except OSError:  # a file system without locks
                    return folder
        return None


def symbol_of(function: Callable[..., Any], types: tuple[Any, ...]) -> str:
    """Return the symbol by which compiled code calls a function, the same in every process."""
    types_hash = hashlib.sha256(str(types).encode()).hexdigest()
    symbol = f"dgcl.{function.__module__}.{function.__qualname__}.{types_hash}"
    _called_by_symbol[symbol] = function.__module__, function.__qualname__, types
    return symbol


def _needs(library: Any) -> list[_Need]:
    """What must be there before the code of `library` runs; LLVM ends the process where a symbol is missing."""
    declared = (f.name for f in library._final_module.functions if f.is_declaration)
    return [_called_by_symbol[name] for name in declared if name in _called_by_symbol]


def cache_folders(source: str) -> Iterator[Path]:
    """Yield where the machine code of a source file may be, best place first.

    The folder of the user's ``NUMBA_CACHE_DIR``; else beside the source, then in the user's cache folder. Last, in the
    folder for temporary files. Links are resolved, so that nobody can redirect what was checked.
    """
    folder = _CacheLocator.get_suitable_cache_subpath(source)
    if config.CACHE_DIR:
        yield _resolved(Path(config.CACHE_DIR) / folder)
    else:
        yield _resolved(Path(source).parent / "__pycache__")
        yield _resolved(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgcl" / folder)
    yield _resolved(Path(tempfile.gettempdir()) / f"dgcl-{os.geteuid()}" / folder)


_resolved = functools.cache(Path.resolve)


def _make(folder: Path) -> None:
    """Make a folder, and those on the way, for this user alone.

    Raises:
        OSError: It cannot be made, or others can write there.
    """
    for place in (*reversed(folder.parents), folder):
        place.mkdir(mode=0o700, exist_ok=True)
    _check_folder(folder)


@functools.cache
def _is_trusted(folder: Path) -> bool:
    """Whether entries of a folder may be run; if not, say so once."""
    try:
        _check_folder(folder)
    except OSError as error:
        _show(f"compiled kernels in {folder} are not used: {error}")
        return False
    return True


def _check_folder(folder: Path) -> None:
    """Raise PermissionError where another user may write into a folder, or put another in its place."""
    _check_owner(folder, folder.stat())
    for place in folder.parents:
        _check_owner(place, place.stat(), sticky=stat.S_ISVTX)


def _check_owner(path: Path, status: os.stat_result, sticky: int = 0) -> None:
    """Raise PermissionError unless only this user and root may write; ``sticky``: a bit that makes up for it."""
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022 and not status.st_mode & sticky:
        raise PermissionError(f"{path} is writable by other users (mode {stat.S_IMODE(status.st_mode):o})")


def sources_digest(module: str, source: str) -> str:
    """Return a hash of all that is compiled into the functions of a module.

    That is the module's file and those of the compiled functions that it imports, and of theirs; and the values of the
    constants that any of them sees, wherever they are defined.
    """
    digest = hashlib.sha256()
    for name in sorted(compiled_together(module)):
        part = sys.modules.get(name)
        path = source if name == module else inspect.getfile(part) if part else ""
        digest.update(f"\0{name}\0".encode() + _file_hash(path))
        for key, value in sorted(vars(part).items()) if part else ():
            if not key.startswith("__") and _is_constant(value):
                digest.update(f"\0{key}={value!r}".encode())
    return digest.hexdigest()


@functools.cache
def _file_hash(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def compiled_together(module: str) -> set[str]:
    """Return the names of the modules whose compiled functions a module's may contain, its own among them."""
    modules, waiting = {module}, [module]
    while waiting:
        part = sys.modules.get(waiting.pop())
        for value in list(vars(part).values()) if part else ():
            home = _home(value)
            if home is not None and home not in modules and home in sys.modules:
                modules.add(home)
                waiting.append(home)
    return modules


def _home(value: Any) -> str | None:
    """The module of a compiled function or intrinsic."""
    if isinstance(value, Dispatcher):
        return str(value.py_func.__module__)
    if isinstance(value, _Intrinsic):
        return str(value._defn.__module__)
    return None


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_constant(item) for item in value)
    return isinstance(value, (bool, int, float, str, bytes, type(None), types.Type))


@functools.cache
def _show(text: str) -> None:
    """Log at INFO, and on a terminal in any case; each thing once."""
    _log.info(text)
    if not _log.isEnabledFor(logging.INFO) and sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"dgcl: {text}\n")


@functools.cache
def _warn_of_no_place(problem: str) -> None:
    _log.warning("compiled kernels cannot be kept, every process compiles them anew (%s)", problem)
