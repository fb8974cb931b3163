"""Warns on rank 0, each text once for a communicator, that numbers are not those of one device.

Called by `dgcl/nn/inexact`. Free to change while rank 0 gives one ``dgcl.InexactWarning`` for a finding, and other
ranks none (`tests/dgcl/nn/test_inexact.py`).
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
