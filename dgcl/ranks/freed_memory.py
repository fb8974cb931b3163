"""Sets whether the C library keeps memory that the process has freed, or returns it to the system.

Keeping it saves the kernel's clearing of new pages; returning it matters where memory is short (Offload), so the two do
not go together. The switches are glibc's ``mallopt``; with another C library nothing happens.

Called by `launcher`, `dgcl/api` and `dgcl/offload/offload`. Free to change while with ``keep_memory=True`` a block that
is freed and allocated again takes no new pages, in threads and in processes (`tests/dgcl/ranks/test_freed_memory.py`).
"""

import ctypes
from collections.abc import Callable
from typing import Any

from dgcl.ranks.context import context

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8  # M_... of malloc.h


def keep_freed_memory() -> None:
    """Keep what is freed for what is allocated next, so that the kernel need not clear new pages."""
    context.keeps_memory = True
    _call("mallopt", _MMAP_MAX, 0)
    _call("mallopt", _TRIM_THRESHOLD, 2**31 - 1)  # an int of C: 2**34 would arrive as 0


def keeping(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a rank whose process keeps what it frees."""
    keep_freed_memory()
    return function(*args)


def share_heap() -> None:
    """Have threads that begin from now on allocate where this one does."""
    _call("mallopt", _ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Return what is free to the system, and from now on blocks of 32 KiB as they are freed.

    glibc otherwise keeps blocks of up to 32 MiB for later, and those of the size of a chunk's rows, or of its edges,
    make holes of one another: three times the memory that is in use was seen.
    """
    _call("mallopt", _MMAP_THRESHOLD, 1 << 15)
    _call("malloc_trim", 0)


def _call(name: str, *values: int) -> None:
    library = ctypes.CDLL(None)
    if hasattr(library, name):
        getattr(library, name)(*values)
