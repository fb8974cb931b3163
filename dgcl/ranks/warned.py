"""Warnings of numbers that are not those of one device, on rank 0, each once.

Called by `dgcl/nn/inexact`. Free to change while all ranks agree, and one that fails is named by the others
in time (`tests/dgcl/ranks/`).
"""

import warnings
from typing import Any
from weakref import WeakKeyDictionary

from dgcl.errors import InexactWarning

_warned: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def warn_once(comm: Any, text: str) -> None:
    """Warn on rank 0, of each thing once."""
    warned = _warned.setdefault(comm, set())
    if text not in warned and comm.rank == 0:
        warnings.warn(text, InexactWarning, stacklevel=4)
    warned.add(text)
