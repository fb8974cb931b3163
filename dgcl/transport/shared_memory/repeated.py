"""Calls that repeat: what earlier calls with the same row shape and dtype have found out is kept.

A :class:`RepeatedCall` is prepared after the first call of its kind has succeeded. From then on a call is a buffer of
the pool and one compiled step (:mod:`dgcl.transport.shared_memory.whole_call`). Whatever is out of the ordinary takes
the general way of :class:`~dgcl.transport.shared_memory.executor.Runtime`, from the start or, where the step returns
early, from there on: a network channel, a profiler, a recorder, a call under way, errors.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dgcl.kernels.rows import STREAMED, sum_rows
from dgcl.transport.shared_memory.dtypes import numpy_dtype, row_type
from dgcl.transport.shared_memory.engine import DONE, EXPAND
from dgcl.transport.shared_memory.executor import Runtime
from dgcl.transport.shared_memory.tasks import Call
from dgcl.transport.shared_memory.waits import pack_tag
from dgcl.transport.shared_memory.whole_call import (
    expand_buffers,
    expand_in_one_step,
    fold_in_one_step,
    pack_words,
)

#: Kinds of calls that a communicator remembers; who makes more begins anew.
_MOST_KINDS: Final = 256


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
        self._shape = (num_rows, *rows.shape[1:])
        self._bytes = num_rows * row_bytes
        self._besides = (program.num_relay if verb == EXPAND else program.num_arrivals) * row_bytes
        twin = numpy_dtype(rows.dtype)
        self._element = np.dtype(f"u{rows.dtype.itemsize}") if twin is None else twin
        self._view = rows.dtype if twin is None else None
        self._tag = pack_tag(verb, self._kind, exchange)
        self._maps: object = None
        self._words = np.zeros(0, np.int64)

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
            if self._peers.maps is not self._maps:
                self._pack()
            block = self._pool.allocate(self._bytes)
            array = self._pool.array(block, self._bytes, self._element)
            result = torch.from_numpy(array.reshape(self._shape))
            relay = self._pool.allocate(self._besides) if self._besides else block
            segment, given = block.segment, rows.data_ptr()
            place = passing = (segment.base, segment.size, block.offset, segment.address + block.offset)
            if relay is not block:
                passing = (relay.segment.base, relay.segment.size, relay.offset, relay.address)
            status = expand_in_one_step(
                self._words, number, given, place, passing, relay is block, runtime.wait_policy
            )
            runtime.call_number = number
            if status != DONE:
                program = self._program
                sizes = (program.num_owned, program.num_local, self._kind.row_bytes)
                self._finish(number, expand_buffers(given, *sizes, place[3], passing[3], relay is block))
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
            if self._peers.maps is not self._maps:
                self._pack()
            arrivals = self._pool.allocate(self._besides)
            block = self._pool.allocate(self._bytes)
            segment, given = arrivals.segment, rows.data_ptr()
            place = (segment.base, segment.size, arrivals.offset, segment.address + arrivals.offset)
            address = block.segment.address + block.offset
            status = fold_in_one_step(self._words, number, given, place, address, runtime.wait_policy)
            runtime.call_number = number
            if status != DONE:
                self._finish(number, (given, self._program.num_local, place[3]))
                self._add(address, given, place[3])
            self._pool.release(arrivals)
            array = self._pool.array(block, self._bytes, self._element)
            result = torch.from_numpy(array.reshape(self._shape))
            return result if self._view is None else result.view(self._view)
        except BaseException as error:
            runtime.stop(error, number)
            raise
        finally:
            holder.clear()

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
        )
        self._maps = maps


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
            if len(known) >= _MOST_KINDS:
                known.clear()
            known[exchange, rows.shape, rows.dtype] = RepeatedCall(self._runtime, exchange, verb, rows)
