"""Warnings of numbers that are not those of one device, on rank 0, each once."""

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


def warn_of_own_sums(comm: Any, closing: bool = False) -> None:
    """Where results of a model are used: warn of reductions in it that no sum over ranks has completed.

    Where a communicator closes, of those alone that were made on it: others may be completed yet.
    """
    pooled = [each for each in comm.control.pooled if not closing or each[3] == id(comm)]
    comm.control.pooled = [each for each in comm.control.pooled if each not in pooled]
    if pooled:
        warn_once(
            comm,
            f"the model took the {pooled[0][0]} this rank's rows, which is not that of all: take"
            " dgcl.nn.global_mean_pool and its kin, or complete a sum with dgcl.nn.global_sum, on_every_rank=True where"
            " forces are its gradient",
        )
