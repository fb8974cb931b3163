"""Expand and fold of tensors on a device: everything is enqueued on the caller's stream, the host waits for nothing.

A call takes blocks from the pool, enters their addresses, and enqueues its prepared operations
(:mod:`dgcl.transport.cuda.operations`) at once; the host goes on, up to 32 calls ahead of the device
(:mod:`dgcl.transport.cuda.run_ahead`). Errors between ranks occur later, on the device: the watchdog
(:mod:`dgcl.transport.cuda.watchdog`) ends the call there, and the next call raises, or `synchronize`.

**Streams.** The calls of a communicator are in one order, whatever streams they are made on: one on another stream
than its predecessor waits, on the device, for that stream. Ranks that are threads and share a device must not share a
stream: one rank's wait would stand in front of what the other does to end it.

**Graphs.** A call may be captured into a CUDA graph after one call of its kind that was not captured: by then its
tables are on the device, its kernels loaded, and its memory allocated. Replays count calls on the device; every rank
must replay as often as the others. ``bytes_sent`` does not count replays.

**Waits** are kernels of one block, of which one thread polls and sleeps. Where the device is shared with another
process, such a kernel may hold the time slice that would end the wait; so there the stream itself waits first, if it
can, behind signals in a launch of their own, until a call has been captured: then the host knows no call's number.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.kernels.cuda_shapes import unit_of
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.transport.base import WholeCalls
from dgcl.transport.cuda.concurrency import advise_threads
from dgcl.transport.cuda.connect import connect
from dgcl.transport.cuda.gpu import DEFAULT_STREAMS, CudaError, Device
from dgcl.transport.cuda.network import Network, peers_of
from dgcl.transport.cuda.operations import Operations, enter_parameters
from dgcl.transport.cuda.pool import DevicePool
from dgcl.transport.cuda.program import EXPAND, FOLD
from dgcl.transport.cuda.run_ahead import RunAhead
from dgcl.transport.cuda.staged_rows import IN, OUT, rows_to_peers, staged_row_counts
from dgcl.transport.cuda.watchdog import Watchdog
from dgcl.transport.describe import profiled
from dgcl.transport.memory import MemoryReport, predict_memory
from dgcl.transport.shared_memory import Runtime
from dgcl.transport.shared_memory.agreement import check_agreement
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.segments import SegmentFile
from dgcl.transport.shared_memory.waits import pack_tag

_log = logging.getLogger("dgcl")

_CLOSE_POLL = 0.005
_LIKELY_ROW_BYTES = 512
_MOST_RESERVED = 256 << 20


class DeviceExchange(WholeCalls):
    """The transport of a rank whose rows are on a device. Construction is collective.

    Args:
        programs: This rank's programs by the names of their exchanges.
        control: The control plane.
        timeout: Seconds without progress on the device after which a call has failed.
        device: This rank's device.
        network: Joins it to ranks on other machines; None: all share memory.
        runtime: The host's, which fails and is closed with this; None: there is none.

    Attributes:
        bytes_sent: ``(E, 2, P)`` int64: bytes that calls so far write to each peer, by exchange and verb.
        pool: The rank's buffers.
        device, shares_memory: This rank's; whether all ranks reach each other's memory.
        staged_rows: Of each exchange the rows that leave by staging memory, in an expand and in a fold: to ranks out of
            reach.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        control: Control,
        timeout: float,
        device: Device,
        network: Network | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_agreement(control, programs)
        # Done flags count the stages of the longest program (dgcl.transport.shared_memory.control_page).
        num_stages = max(program.num_stages for program in programs.values())
        programs = {name: replace(each, num_stages=num_stages) for name, each in programs.items()}
        self._programs = tuple(programs.values())
        self._rank, self.device, self._timeout, self._runtime = control.rank, device, timeout, runtime
        self._process = os.getpid()
        self._file = SegmentFile()
        self.shares_memory = network is None
        control_page = ControlPage.create(self._file, control.world_size)
        peers = peers_of(control, self._file, control_page, network)
        with device.current():
            self._connections = connect(device, control, network)
            self.pool = DevicePool(device, self._connections.directory.add)
            self._reserve(control)
        self._watchdog = Watchdog(
            self._connections, self.pool, programs, control_page, peers, timeout, network
        )
        self._control_page, self._peers, self._network = control_page, peers, network
        addresses, endpoint = self._connections.addresses, self._connections.endpoint
        self._other_streams: list[int] = []  # for copies out and in, and for the network
        if addresses.staged or endpoint is not None:
            with device.current():
                copies = [device.driver.create_stream(role) if addresses.staged else 0 for role in (OUT, IN)]
            self._other_streams = [*copies, 0 if endpoint is None else endpoint.stream]
        self.staged_rows = staged_row_counts(self._programs, addresses.staged | addresses.partners)
        self._kinds: dict[tuple[int, int, int, str, int], Operations] = {}
        with device.current():
            self._switched, self._ended = device.driver.create_event(), device.driver.create_event()
        self._call = 0
        self._run_ahead = RunAhead(self._connections.page.finished, self.check_usable)
        self._closed = False
        others = self._connections.shares_device_with(self._process, same=False)
        with device.current():
            # A rank that is a thread waits in this process, and may wait for what is being loaded.
            device.load("begin", "signal_wait", "gather")
            if self._connections.shares_device_with(self._process, same=True):
                device.load("sum")
        control.barrier()
        self._stream_waits = device.waits_in_streams and bool(others)
        self._shared = self._connections.shares_device_with(self._process, same=True)
        if self._shared:
            advise_threads(self._rank)
        self.bytes_sent = np.zeros((len(programs), 2, control.world_size), np.int64)
        self._rows_to = rows_to_peers(self._programs)

    def _reserve(self, control: Control) -> None:
        """Allocate what first calls are likely to need; peers open it now, while no kernel could delay them."""
        rows = max(each.num_local + each.num_relay + each.num_arrivals for each in self._programs)
        try:
            block = self.pool.allocate(min(2 * rows * _LIKELY_ROW_BYTES, _MOST_RESERVED), 0)
            self.pool.release(block)
        except MemoryError:  # calls may need less
            _log.debug("rank %d: no memory to reserve", self._rank)
        control.barrier()
        self._connections.map_new()

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` to ``(num_local, *F)``: owned and halo rows."""
        with self.device.current(), profiled(self._programs[exchange], "expand", rows):
            return self._expand(rows, exchange)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)``, which is only read, to the sums ``(num_owned, *F)`` over all ranks."""
        with self.device.current(), profiled(self._programs[exchange], "fold", rows):
            return self._fold(rows, exchange)

    def _expand(self, rows: Tensor, exchange: int) -> Tensor:
        program = self._programs[exchange]
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        stream = self._begin()
        rows = rows.contiguous()
        buffer = self.pool.allocate(program.num_local * kind.row_bytes, stream)
        relay = self._scratch(program.num_relay * kind.row_bytes, stream)
        result = self._as_tensor(buffer, (program.num_local, *rows.shape[1:]), rows.dtype)
        # Blocks lie at multiples of 256 bytes, here and at the peers.
        operations = self._operations(exchange, EXPAND, kind.row_bytes, rows.dtype, unit_of(kind.row_bytes))
        second = relay.address if relay else buffer.address
        staging = self._scratch(self.staged_rows[exchange][EXPAND] * kind.row_bytes, stream)
        bases = buffer.address, second, staging.address if staging else 0
        parameters = enter_parameters(
            pack_tag(EXPAND, kind, exchange), buffer.address, second, 0, bases[2], buffer, relay
        )
        copy = buffer.address, rows.data_ptr()
        self._enqueue(exchange, EXPAND, operations, stream, parameters, copy, bases, rows, kind.row_bytes)
        for scratch in (relay, staging):
            if scratch is not None:
                self.pool.release(scratch)
        return result

    def _fold(self, rows: Tensor, exchange: int) -> Tensor:
        program = self._programs[exchange]
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        stream = self._begin()
        rows = rows.contiguous()
        arrivals = self.pool.allocate(program.num_arrivals * kind.row_bytes, stream)
        buffer = self.pool.allocate(program.num_owned * kind.row_bytes, stream)
        result = self._as_tensor(buffer, (program.num_owned, *rows.shape[1:]), rows.dtype)
        unit = unit_of(kind.row_bytes, rows.data_ptr(), item_bytes=rows.dtype.itemsize)
        operations = self._operations(exchange, FOLD, kind.row_bytes, rows.dtype, unit)
        staging = self._scratch(self.staged_rows[exchange][FOLD] * kind.row_bytes, stream)
        bases = arrivals.address, arrivals.address, staging.address if staging else 0
        parameters = enter_parameters(
            pack_tag(FOLD, kind, exchange),
            rows.data_ptr(),
            arrivals.address,
            buffer.address,
            bases[2],
            arrivals,
            None,
        )
        self._enqueue(exchange, FOLD, operations, stream, parameters, (0, 0), bases, rows, kind.row_bytes)
        self.pool.release(arrivals)
        if staging is not None:
            self.pool.release(staging)
        return result

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        if self._network is None:
            return self._connections.reasons
        return [self._network.reason(peer) or why for peer, why in enumerate(self._connections.reasons)]

    def memory(
        self, widths: Sequence[int | tuple[int, int]], dtype: torch.dtype, **kinds: Any
    ) -> MemoryReport:
        """Predict what buffers and tables take; see :func:`dgcl.transport.memory.predict_memory`."""
        return predict_memory(self._programs, widths, dtype, staged_rows=self.staged_rows, **kinds)

    @property
    def devices(self) -> list[str]:
        """UUID of each rank's device; equal for ranks that share one."""
        return [descriptor.uuid for descriptor in self._connections.descriptors]

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Keep a result's memory until another stream than that of the calls has read it.

        Args:
            rows: A result of this communicator, or a view that begins where it begins.
            stream: Handle of the stream.
        """
        self.pool.use_on(rows.data_ptr(), stream)

    def synchronize(self) -> None:
        """Wait on the host until the current stream has done everything, and raise what went wrong."""
        with self.device.current():
            self.device.driver.synchronize_stream(self.device.tensors.current_stream())
        if self._watchdog.failure is None and self._watchdog.unfinished:
            self._watchdog.name_fault()
        self.check_usable()

    @property
    def failure(self) -> CommError | None:
        """Why it is unusable; None if it is not, or was closed."""
        return None if self._closed else self._watchdog.failure

    def fail(self, error: CommError) -> None:
        """Poison the communicator, tell the peers why, and let the device stop."""
        if not self._closed and os.getpid() == self._process:
            self._watchdog.fail(error)
        if self._runtime is not None:
            self._runtime.fail(error)

    def check_usable(self) -> None:
        """Raise unless a call can be made now."""
        if os.getpid() != self._process:
            raise ValueError(
                f"rank {self._rank}: this process is a fork of the rank's process {self._process}, which alone may"
                " use the communicator"
            )
        if self._closed:
            raise ValueError(
                f"rank {self._rank}: this communicator is closed; build a new one with build_comm_info"
            )
        if (failure := self._watchdog.failure) is not None:
            raise type(failure)(
                f"rank {self._rank}: this communicator is unusable since an earlier call failed ({failure}); close"
                " it and build a new one"
            )

    def close(self) -> None:
        """Leave when the device has done this rank's calls. Idempotent, not collective; results stay valid."""
        if self._closed:
            return
        self._closed = True
        try:
            if os.getpid() == self._process:
                self._leave()
        finally:
            if self._runtime is not None:
                self._runtime.close()

    def _leave(self) -> None:
        with self.device.current():
            self._wait_for_calls()
            if self._network is not None and self._watchdog.failure is None:
                self._network.leave(self._connections.page.finished())
            self._control_page.post_closed()
        self._watchdog.leave(self._after)

    def _after(self) -> None:
        self._peers.close()
        self._file.close()

    def _wait_for_calls(self) -> None:
        """Wait until the last call is done; the watchdog ends those that are not."""
        if self._call == 0:
            return
        end = time.monotonic() + self._timeout + 5.0
        while not self.device.driver.has_happened(self._ended) and time.monotonic() < end:
            time.sleep(_CLOSE_POLL)

    def _begin(self) -> int:
        """Check that a call may be made, and put its stream behind that of the last call; returns the handle."""
        self.check_usable()
        driver, pool = self.device.driver, self.pool
        stream = self.device.tensors.current_stream()
        if self._shared and stream in DEFAULT_STREAMS:
            raise ValueError(
                f"rank {self._rank} and rank {self._shared[0]} are threads of one process, share a GPU, "
                "and would share its default stream, where each waits for the other for ever; let every such "
                "rank run under torch.cuda.stream(torch.cuda.Stream())"
            )
        pool.capturing = bool(stream) and driver.is_capturing(stream)
        if pool.capturing:
            if self._connections.addresses.staged:
                raise RuntimeError(
                    f"rank {self._rank} exchanges rows with some ranks through the host's memory; such a "
                    "call cannot be captured into a CUDA graph"
                )
            self._stream_waits = False
            return stream
        self._run_ahead.make_room()
        if pool.last_stream is not None and pool.last_stream != stream:
            driver.record_event(self._switched, pool.last_stream)
            driver.wait_event(stream, self._switched)
        pool.last_stream = stream
        return stream

    def _scratch(self, num_bytes: int, stream: int) -> Block | None:
        return self.pool.allocate(num_bytes, stream) if num_bytes else None

    def _operations(
        self, exchange: int, verb: int, row_bytes: int, dtype: torch.dtype, unit: int
    ) -> Operations:
        key = (exchange, verb, row_bytes, str(dtype) if verb == FOLD else "", unit)
        if key not in self._kinds:
            if self.pool.capturing:
                raise RuntimeError(
                    "a call of this kind is captured into a CUDA graph before one was made outside: run the step "
                    "once, or better thrice, before capturing it"
                )
            kind = row_type(dtype, row_bytes // dtype.itemsize)
            connections = self._connections
            self._kinds[key] = Operations(
                self.device,
                self._programs[exchange],
                verb,
                connections.addresses,
                connections.tables,
                kind,
                unit,
                connections.lanes if connections.addresses.staged else None,
                connections.endpoint,
            )
        return self._kinds[key]

    def _enqueue(
        self,
        exchange: int,
        verb: int,
        operations: Operations,
        stream: int,
        parameters: tuple[int, ...],
        copy: tuple[int, int],
        bases: tuple[int, int, int],
        rows: Tensor,
        row_bytes: int,
    ) -> None:
        driver, tables = self.device.driver, self._connections.tables
        self.device.tensors.keep(rows, stream)
        if not self.pool.capturing:
            self._call += 1
            if not driver.has_happened(tables.event):
                driver.wait_event(stream, tables.event)
        try:
            streams = [stream, *self._other_streams]
            operations.enqueue(streams, self._call, parameters, copy, bases, stream_waits=self._stream_waits)
            if not self.pool.capturing:
                driver.record_event(self._ended, stream)
                self._run_ahead.add(self._call, operations.num_operations)
        except (CudaError, CommError) as error:
            self.fail(CommError(f"rank {self._rank}: a call could not be enqueued: {error}"))
            if isinstance(error, CommError):
                self.check_usable()
            raise
        if not self.pool.capturing:
            self.bytes_sent[exchange, verb] += self._rows_to[exchange, verb] * row_bytes

    def _as_tensor(self, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor over a block, which goes back to the pool when the tensor's storage dies."""
        num_bytes = math.prod(shape) * dtype.itemsize
        memory = self.pool.tensor_over(block, max(num_bytes, 1))
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype, device=self.device.tensors.device)
        return memory.view(*shape[:-1], -1).view(dtype)  # the type last, as in shared_memory/results.py
