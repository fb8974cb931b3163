"""What the C library does with memory that the whole process has freed: returns it to the system, or keeps it.

By switches of glibc's ``mallopt``; with another C library nothing happens.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dgcl.ranks.context import context

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8  # M_... of malloc.h
_MOST = 32 << 20  # the threshold that glibc itself goes up to, once it has seen such a block freed


def keep_freed_memory() -> None:
    """Keep what is freed for what is allocated next, so that the kernel need not clear new pages."""
    context.keeps_memory = True
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, 2**31 - 1)  # an int of C: 2**34 would arrive as 0


def keeping(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a rank whose process keeps what it frees."""
    keep_freed_memory()
    return function(*args)


@contextmanager
def one_heap() -> Iterator[None]:
    """Have threads that begin meanwhile allocate where this one does; in the end what they kept is returned."""
    _set(_ARENA_MAX, 1)
    try:
        yield
    finally:
        if not context.keeps_memory:
            _set(_MMAP_MAX, 1 << 16)
            _set(_TRIM_THRESHOLD, 2 * _MOST)
            return_freed_memory(_MOST)


def return_freed_memory(threshold: int = 1 << 17) -> None:
    """Return what is free to the system, and from now on blocks of so many bytes as they are freed.

    glibc otherwise keeps blocks of up to 32 MiB for later, and those of the size of a chunk's rows make holes of one
    another: three times the memory that is in use was seen.
    """
    _set(_MMAP_THRESHOLD, threshold)
    getattr(ctypes.CDLL(None), "malloc_trim", bool)(0)


def _set(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(option, value)
