"""A pool of result buffers, reused once nothing refers to them.

A sum writes each of its results once, and the first touch of new memory takes as long as the sum itself: the system
clears it page by page. As for what transports return (:mod:`dgcl.transport.shared_memory.pool`), a piece is free when
the *storage* of its tensor dies, whatever view of it lived longest.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

_SMALLEST = 1 << 17
"""Bytes of the smallest result that is kept: the allocator of smaller ones does not return them to the system."""


class ResultMemory:
    """Allocates results of one rank's aggregations; one thread allocates, any may let a result die.

    What is free is never more than what was in use at one time.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()  # the one that died last at the right
        self._returned: deque[np.ndarray] = deque()  # appended to by finalisers, in any thread
        self._arrays: dict[int, weakref.ref[np.ndarray]] = {}
        self._in_use = self._most_in_use = 0

    @property
    def bytes_free(self) -> int:
        """Bytes that are kept for results to come."""
        self._collect()
        return sum(piece.nbytes for piece in self._free)

    def empty(self, like: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """``(num_rows, width)`` on the device of ``like``, not filled."""
        size = num_rows * width * dtype.itemsize
        if like.device.type != "cpu" or size < _SMALLEST:
            return like.new_empty(num_rows, width, dtype=dtype)
        piece = self._take(size)
        # From a buffer, not a slice: views of a slice would refer to the piece itself, and not to this array.
        array = np.frombuffer(piece.data, np.uint8)

        def give_back(_: object, self: ResultMemory = self) -> None:
            self._arrays.pop(piece.ctypes.data, None)
            self._returned.append(piece)

        self._arrays[piece.ctypes.data] = weakref.ref(array, give_back)
        # The type last: autograd takes a view of floats for one, and refuses to change it in place.
        return torch.from_numpy(array).view(num_rows, -1).view(dtype)

    def _take(self, size: int) -> np.ndarray:
        self._collect()
        self._in_use += size
        self._most_in_use = max(self._most_in_use, self._in_use)
        for place in reversed(range(len(self._free))):
            if self._free[place].nbytes == size:  # training steps repeat their sizes
                piece = self._free[place]
                del self._free[place]
                return piece
        return np.empty(size, np.uint8)

    def _collect(self) -> None:
        while self._returned:
            piece = self._returned.popleft()
            self._in_use -= piece.nbytes
            self._free.append(piece)
        left = sum(piece.nbytes for piece in self._free)
        while left > self._most_in_use - self._in_use:
            left -= self._free.popleft().nbytes
