"""Calls that repeat: what earlier calls with the same row shape and dtype have found out is kept.

A :class:`RepeatedCall` is prepared after the first call of its kind has succeeded. From then on a call is a buffer of
the pool and one compiled step (:mod:`dgcl.transport.shared_memory.whole_call`). Whatever is out of the ordinary takes
the general way of :class:`~dgcl.transport.shared_memory.executor.Runtime`, from the start or, where the step returns
early, from there on: a network channel, a profiler, a recorder, a call under way, errors.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from typing import Final

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from dgcl.kernels.compiled import entry_point
from dgcl.kernels.rows import STREAMED, sum_rows
from dgcl.transport.shared_memory.dtypes import numpy_dtype, row_type
from dgcl.transport.shared_memory.engine import DONE, EXPAND
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.pool import Block, size_of_block
from dgcl.transport.shared_memory.tasks import Call
from dgcl.transport.shared_memory.waits import pack_tag
from dgcl.transport.shared_memory.whole_call import (
    expand_buffers,
    expand_in_one_step,
    fold_in_one_step,
    pack_words,
)

#: Kinds of calls that a communicator remembers; who makes more begins anew.
MOST_KINDS: Final = 256


@functools.lru_cache(MOST_KINDS)
def _array_like(shape: tuple[int, ...], element: DTypeLike) -> tuple[tuple[int, ...], DTypeLike]:
    """Shape and type of arrays, one object for equal ones."""
    return shape, element


class RepeatedCall:
    """An expand or a fold of one exchange, for rows of one shape and dtype.

    Args:
        runtime: The communicator's.
        exchange, verb: Of the call.
        rows: Rows as a call takes them.
    """

    def __init__(self, runtime: Runtime, exchange: int, verb: int, rows: Tensor) -> None:
        program, self._task = runtime.programs[exchange], runtime.tasks[2 * exchange + verb]
        self._runtime, self._pool, self._peers, self._program = runtime, runtime.pool, runtime.peers, program
        self._kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        row_bytes = self._kind.row_bytes
        num_rows = program.num_local if verb == EXPAND else program.num_owned
        self._bytes = num_rows * row_bytes
        self._besides = (program.num_relay if verb == EXPAND else program.num_arrivals) * row_bytes
        self._sizes = size_of_block(self._bytes), size_of_block(self._besides)
        twin = numpy_dtype(rows.dtype)
        self._element = np.dtype(f"u{rows.dtype.itemsize}") if twin is None else twin
        self._like = _array_like((num_rows, *rows.shape[1:]), self._element)
        self._view = rows.dtype if twin is None else None
        self._tag = pack_tag(verb, self._kind, exchange)
        self._carry_out = entry_point(expand_in_one_step if verb == EXPAND else fold_in_one_step)
        self._maps: object = None
        self._policy = runtime.wait_policy
        self._words = np.zeros(0, np.int64)
        self._address = 0

    def expand(self, rows: Tensor) -> Tensor | None:
        """Fill a new ``(num_local, *F)`` tensor from contiguous owned rows; None: take the general way."""
        runtime = self._runtime
        if not runtime.is_plain or os.getpid() != runtime.process:
            return None
        holder = runtime.holder
        me = threading.get_ident()
        if holder.setdefault("thread", me) != me:
            return None
        number = runtime.call_number + 1
        try:
            if self._peers.maps is not self._maps or runtime.wait_policy is not self._policy:
                self._pack()
            size, besides = self._sizes
            block = self._pool.take(size)
            prepared = block.prepared
            if prepared is None or prepared[0] is not self._like:
                prepared = self._prepare(block)
            array = prepared[1].view()
            self._pool.release_with(array, block)
            result = torch.from_numpy(array)
            place = passing = prepared[2]
            relay = self._pool.take(besides) if self._besides else block
            if relay is not block:
                passing = (relay.prepared or self._prepare(relay))[2]
            status = self._carry_out(self._address, number, rows.data_ptr(), place, passing)
            runtime.call_number = number
            if status != DONE:
                program = self._program
                sizes = (program.num_owned, program.num_local, self._kind.row_bytes)
                given = (block.address, relay.address, relay is block)
                self._finish(number, expand_buffers(rows.data_ptr(), *sizes, *given))
            if relay is not block:
                self._pool.release(relay)
            return result if self._view is None else result.view(self._view)
        except BaseException as error:
            runtime.stop(error, number)
            raise
        finally:
            holder.clear()

    def fold(self, rows: Tensor) -> Tensor | None:
        """The sums of contiguous local rows, ``(num_owned, *F)``; None: take the general way."""
        runtime = self._runtime
        if not runtime.is_plain or os.getpid() != runtime.process:
            return None
        holder = runtime.holder
        me = threading.get_ident()
        if holder.setdefault("thread", me) != me:
            return None
        number = runtime.call_number + 1
        try:
            if self._peers.maps is not self._maps or runtime.wait_policy is not self._policy:
                self._pack()
            size, besides = self._sizes
            arrivals, block = self._pool.take(besides), self._pool.take(size)
            prepared = block.prepared
            if prepared is None or prepared[0] is not self._like:
                prepared = self._prepare(block)
            arrived = (arrivals.prepared or self._prepare(arrivals))[2]
            status = self._carry_out(self._address, number, rows.data_ptr(), prepared[2], arrived)
            runtime.call_number = number
            if status != DONE:
                self._finish(number, (rows.data_ptr(), self._program.num_local, arrivals.address))
                self._add(block.address, rows.data_ptr(), arrivals.address)
            self._pool.release(arrivals)
            array = prepared[1].view()
            self._pool.release_with(array, block)
            result = torch.from_numpy(array)
            return result if self._view is None else result.view(self._view)
        except BaseException as error:
            runtime.stop(error, number)
            raise
        finally:
            holder.clear()

    def _prepare(self, block: Block) -> tuple[object, np.ndarray, int, np.ndarray]:
        """What calls need of a block: whose it is, an array over it, and the address of the words that say where it is.

        Each call gives away a view of that array. Memory that only calls read and write needs the words alone.
        """
        segment, like = (
            block.segment,
            self._like if self._sizes[0] == block.size else _array_like((0,), np.uint8),
        )
        array = np.ndarray(*like, segment.memory.data, block.offset)
        words = np.array([segment.base, segment.size, block.offset, block.address], np.int64)
        block.prepared = (like, array, words.ctypes.data, words)
        return block.prepared

    def _finish(self, number: int, buffers: tuple[int, int, int]) -> None:
        """Go on the general way where a step has returned early."""
        call = Call(self._task, number, self._tag, self._kind, buffers)
        self._runtime.under_way = call
        self._runtime.run(call)

    def _add(self, result: int, rows: int, arrivals: int) -> None:
        program, kind = self._program, self._kind
        tables = (program.arrival_rows, program.arrival_slots)
        sum_rows(
            kind.sum_code, result, rows, 0, program.num_owned, *tables, 0, arrivals, kind.row_bytes, STREAMED
        )

    def _pack(self) -> None:
        """Prepare the words, anew when segments of peers were mapped that need a larger table."""
        runtime, kind, program = self._runtime, self._kind, self._program
        maps = self._peers.maps
        self._words = pack_words(
            self._task,
            maps,
            runtime.bytes_sent[self._task.counted, self._task.verb],
            runtime.step_addresses,
            (self._tag, kind.row_bytes, kind.sum_code),
            (program.num_owned, program.num_local),
            runtime.wait_policy,
        )
        self._maps, self._policy, self._address = maps, runtime.wait_policy, self._words.ctypes.data


class RepeatedCalls:
    """The kinds of calls that were made before, by exchange, verb, row shape and dtype."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._expands: dict[object, RepeatedCall] = {}
        self._folds: dict[object, RepeatedCall] = {}
        self.find_expand, self.find_fold = self._expands.get, self._folds.get

    def remember(self, exchange: int, verb: int, rows: Tensor) -> None:
        """Prepare the next call like one that has just been made, where that is possible."""
        known = self._expands if verb == EXPAND else self._folds
        if self._runtime.is_plain and rows.numel() and rows.is_contiguous():
            if len(known) >= MOST_KINDS:
                known.clear()
            known[exchange, rows.shape, rows.dtype] = RepeatedCall(self._runtime, exchange, verb, rows)
