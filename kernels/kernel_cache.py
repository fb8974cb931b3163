"""Where machine code is kept, whom it belongs to, and who may write it: numba's function cache, shared by ranks."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib
import inspect
import logging
import os
import pickle
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from numba import types
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.serialize import dumps

_log = logging.getLogger("dgcl")

_SCALARS: Final = (bool, int, float, str, bytes, type(None))
_POLL_SECONDS: Final = 0.02
_QUIET_SECONDS: Final = 1.5  # what may be waited for without a word

_Need = tuple[str, str, tuple[Any, ...]]  # module and name of a function, the types for which it is compiled
_called_by_symbol: Final[dict[str, _Need]] = {}  # symbols that compiled code of this process may call


class _Locator(_CacheLocator):  # type: ignore[misc]
    """What numba asks about a function: the first folder of its cache, and its stamp."""

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._function, self._py_file = function, source

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> _Locator:
        return cls(function, source)

    def get_cache_path(self) -> str:
        return str(next(cache_folders(self._py_file)))

    def get_source_stamp(self) -> str:
        return ""  # KernelCache has its own, which it needs later

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: Final = [_Locator]


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache entries of one function: read from any of its folders, written by one process at a time."""

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._source = inspect.getfile(function)
        _file_hash(self._source)  # of what is imported at this moment, not of what it may be edited to later
        self._lock: int | None = None

    @functools.cached_property
    def _files(self) -> list[IndexDataCacheFile]:
        # Not when the function is decorated: by now its module has been imported to the end.
        name = self._impl.filename_base
        return [IndexDataCacheFile(str(folder), name, self._stamp) for folder in cache_folders(self._source)]

    @functools.cached_property
    def _stamp(self) -> str:
        return sources_digest(self._py_func.__module__, self._source)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the machine code for ``signature``, or None: then this process holds the lock, and shall compile."""
        target_context.refresh()
        found = self._read(signature, target_context)
        if found is None:
            self._wait_for_lock()
            found = self._read(signature, target_context)
        if found is None:
            _announce(self._files[0]._cache_path)
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write machine code into the first folder that takes it."""
        if not self._impl.check_cachable(result):
            return
        key = self._index_key(signature, result.codegen)
        # With a stamp of its own: another process may put the code of older sources in its place.
        code = dumps((_needs(result.library), self._impl.reduce(result)))
        data = self._stamp, hashlib.sha256(code).digest(), code
        problem: OSError | None = None
        for file in self._files:
            try:
                os.makedirs(file._cache_path, exist_ok=True)
                file.save(key, data)
            except OSError as error:
                problem = problem or error
                continue
            if problem is not None:
                _tell_place(file._cache_path, str(problem))
            return
        _warn_of_no_place(str(problem))

    def is_filled(self) -> bool:
        """Tell whether any machine code of the present sources is on disk."""
        try:
            return any(file._load_index() for file in self._files)
        except Exception as error:  # a damaged index, as below
            _log.debug("%s: %r", self._source, error)
            return False

    def unlock(self) -> None:
        """Let others compile this function, if this process holds its lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self, signature: Any, target_context: Any) -> Any:
        key = self._index_key(signature, target_context.codegen())
        for file in self._files:
            try:
                stamp, digest, code = file.load(key) or ("", b"", b"")
                good = stamp == self._stamp and hashlib.sha256(code).digest() == digest
            except Exception as error:  # a damaged entry: whatever unpickling it raises, it is made anew
                _log.debug("%s: %r", file._index_path, error)
                continue
            if good:  # what is raised from here on is not the entry's: a signal handler's of the user's, for instance
                needs, reduced = pickle.loads(code)
                for module, name, types in needs:
                    getattr(importlib.import_module(module), name).compile(types)
                return self._impl.rebuild(target_context, reduced)
        return None

    def _wait_for_lock(self) -> None:
        """Lock a file beside the entry. Where no folder takes a lock, everybody compiles."""
        for file in self._files:
            path = Path(file._index_path).with_suffix(".lock")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                continue
            since, told = time.monotonic(), False
            while True:
                try:
                    # Not flock(), which a forked child would go on holding after this process has died.
                    fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except (BlockingIOError, PermissionError):
                    if not told and time.monotonic() - since > _QUIET_SECONDS:
                        told = True
                        _tell(f"waiting for kernels that another process compiles ({self._py_func.__name__})")
                    time.sleep(_POLL_SECONDS)
                except OSError:  # a file system without locks
                    return


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

    What the user set as ``NUMBA_CACHE_DIR``; else beside the source, then in the user's cache folder. Last, a folder of
    the user's in the one for temporary files: entries are unpickled, so nobody else may write there.
    """
    folder = _CacheLocator.get_suitable_cache_subpath(source)
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR) / folder
    else:
        yield Path(source).parent / "__pycache__"
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgcl" / folder
    temporary = _private_temporary_folder()
    if temporary is not None:
        yield temporary / folder


@functools.cache
def _private_temporary_folder() -> Path | None:
    path = Path(tempfile.gettempdir()) / f"dgcl-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return path if mine else None


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
    found, waiting = {module}, [module]
    while waiting:
        part = sys.modules.get(waiting.pop())
        for value in list(vars(part).values()) if part else ():
            home = _home(value)
            if home is not None and home not in found and home in sys.modules:
                found.add(home)
                waiting.append(home)
    return found


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
    return isinstance(value, (*_SCALARS, types.Type))


def _tell(text: str) -> None:
    """Say it in the log, and on a terminal in any case."""
    _log.info(text)
    if not _log.isEnabledFor(logging.INFO) and sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"dgcl: {text}\n")


@functools.cache
def _announce(folder: str) -> None:
    _tell(
        f"compiling kernels for this machine, once: 15 s for exchanges, a minute for planning (kept in {folder})"
    )


@functools.cache
def _tell_place(folder: str, problem: str) -> None:
    _tell(f"compiled kernels are kept in {folder} ({problem})")


@functools.cache
def _warn_of_no_place(problem: str) -> None:
    _log.warning("compiled kernels cannot be kept, every process compiles them anew (%s)", problem)
