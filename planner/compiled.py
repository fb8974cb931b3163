"""Compiles functions with numba, with a disk cache that notices changes in every file involved.

Numba stamps a cached function with the hash of its own source file only. A function that calls (and inlines)
one of another file would go on running the old code after that file has changed: after an upgrade, say, that
left the caller's file as it was. Here the stamp also covers all files of this package with compiled code.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def compiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Compile ``function`` on first use and keep the machine code on disk."""
    dispatcher = njit(cache=True, nogil=True)(function)
    index = (
        dispatcher._cache._cache_file
    )  # no public way to add to the stamp; a test holds that this one works
    index._source_stamp = (index._source_stamp, sources_digest())
    return cast("Callable[_Arguments, _Result]", dispatcher)


@functools.cache
def sources_digest() -> str:
    """Return a hash of all files of this package and its subpackages that hold compiled functions."""
    digest = hashlib.sha256()
    folder = pathlib.Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if b"\n@compiled\n" in source:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + source)
    return digest.hexdigest()
