"""Counts the live bytes of tensors that torch's operations make inside a layer, and raises above a limit.

A dispatch mode of torch. A result counts where it shares no memory with an argument, and until its memory is freed;
tensors on other devices do not count. Rows in host memory are made by numpy, so they do not count either.
Called by `layer`, `offload` and `rehearsal`. Free to change while a layer that makes more than a memory limit leaves
raises an error with its name and ways out (`tests/dgcl/offload/test_offload.py`).
"""

from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from dgcl.ranks.torch_private import TorchDispatchMode, tree_iter


class Allocations(TorchDispatchMode):
    """Counts bytes of the tensors that operations make, for as long as they live.

    Args:
        limit: Bytes that they may take; None: any.
        device: Where; what is elsewhere does not count.

    Attributes:
        layer: Which one is computed, for messages.
        now, peak: Bytes that live, and the most so far.
    """

    def __init__(self, limit: int | None, device: torch.device) -> None:
        super().__init__()
        self.layer: object = "a layer"
        self.limit, self.device = limit, device.type
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; its results have memory of their own where no argument has the same."""
        result = func(*args, **(kwargs or {}))
        before = _storages((args, kwargs))
        for storage in _storages(result):
            if not any(storage is each for each in before) and storage.device.type == self.device:
                self._add(storage.nbytes())
                finalize(storage, self._add, -storage.nbytes())
        if self.limit is not None and self.now > self.limit:
            raise ValueError(
                f"{self.layer} takes more than the {self.limit} bytes that memory_limit leaves for slots, a chunk's"
                " rows and what is made of them. Ways out: (1) layers=, so that as many chunks are"
                " taken as the layers need, (2) chunks= a larger number, instead of memory_limit, (3) a larger"
                " memory_limit, (4) aggregate=, so that edges have no rows of their own"
            )
        return result

    def _add(self, num_bytes: int) -> None:
        self.now += num_bytes
        self.peak = max(self.peak, self.now)


def _storages(values: Any) -> list[Any]:
    return [each.untyped_storage() for each in tree_iter(values) if isinstance(each, Tensor)]
