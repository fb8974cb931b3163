"""A pool of CPU memory for results of sums, used again once no tensor refers to it.

The first touch of new memory takes as long as the sum itself: the system clears it page by page. As for what transports
return (:mod:`dgcl.transport.common.pool`), a piece is free when the *storage* of its tensor dies, whatever view of it
lived longest. Results on devices, and those below 128 KiB, are torch's own.
Called by `step_execution` and `dgcl/advisor/rank_bytes`, which predicts with it. Free to change while memory is used
again after its last view died and never before, and no more is held than was in use at one time
(`tests/dgcl/aggregation/test_results.py`).
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SMALLEST = 1 << 17
"""Bytes of the smallest result that is kept: the allocator of smaller ones does not return them to the system."""


class ResultMemory:
    """Allocates results of one rank's aggregations; one thread allocates, any may let a result die.

    It never holds more than was in use at one time.

    Attributes:
        returned: Takes pieces back; the next :meth:`take` may return them again.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []  # the one that died last at the end
        self.returned: deque[np.ndarray] = deque()  # appended to by finalisers, in any thread
        self._in_use = self._most_in_use = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of results, and of pieces that are kept for those to come."""
        return self._in_use + sum(piece.nbytes for piece in self._free)

    def empty(self, like: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """``(num_rows, width)`` on the device of ``like``, not filled."""
        import torch

        size = num_rows * width * dtype.itemsize
        if like.device.type != "cpu" or size < _SMALLEST:
            return like.new_empty(num_rows, width, dtype=dtype)
        reused = self.take(size)
        piece = np.empty(size, np.uint8) if reused is None else reused
        # From a buffer, not a slice: views of a slice would refer to the piece itself, and not to this array.
        array = np.frombuffer(piece.data, np.uint8)
        weakref.finalize(array, self.returned.append, piece).atexit = False
        # The type last: autograd takes a view of floats for one, and refuses to change it in place.
        return torch.from_numpy(array).view(num_rows, -1).view(dtype)

    def take(self, size: int) -> np.ndarray | None:
        """Count on a piece of so many bytes: one that died, or None where there is none."""
        while self.returned:
            piece = self.returned.popleft()
            self._in_use -= piece.nbytes
            self._free.append(piece)
        self._in_use += size
        self._most_in_use = max(self._most_in_use, self._in_use)
        same = [place for place, piece in enumerate(self._free) if piece.nbytes == size]
        reused = self._free.pop(same[-1]) if same else None  # training steps repeat their sizes
        while self.num_bytes > self._most_in_use:
            del self._free[0]
        return reused
