"""Expand and fold of tensors on a device: everything is enqueued on the caller's stream, the host waits for nothing.

A call takes blocks from the pool, enters their addresses, and enqueues its prepared operations
(:mod:`dgcl.transport.cuda.operations`) at once; the host goes on before the device has begun. Errors between ranks
occur later, on the device: the watchdog (:mod:`dgcl.transport.cuda.watchdog`) ends the call there, and the error is
raised here, by the next call or by :meth:`DeviceExchange.synchronize`.

**Streams.** The calls of a communicator are in one order, whatever streams they are made on: one on another stream
than its predecessor waits, on the device, for that stream. Ranks that are threads and share a device must not share a
stream: one rank's wait would stand in front of what the other does to end it.

**Graphs.** A call may be captured into a CUDA graph after one call of its kind that was not captured: by then its
tables are on the device, its kernels loaded, and its memory allocated. Replays count calls on the device; every rank
must replay as often as the others. ``bytes_sent`` does not count replays.

**Waits** are kernels of one sleeping thread. Where the device is shared with another process, such a kernel may hold
the time slice that would end the wait; so there the stream itself waits first, if it can, until a call has been
captured: from then on the host does not know the number of a call.
"""

from __future__ import annotations

import logging
import math
import os
import time

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.kernels.cuda_shapes import unit_of
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.transport.cuda.connect import connect
from dgcl.transport.cuda.gpu import DEFAULT_STREAMS, CudaError, Device
from dgcl.transport.cuda.network import Network
from dgcl.transport.cuda.operations import Operations, enter_parameters
from dgcl.transport.cuda.pool import DevicePool
from dgcl.transport.cuda.program import EXPAND, FOLD
from dgcl.transport.cuda.watchdog import Watchdog
from dgcl.transport.shared_memory.agreement import check_agreement
from dgcl.transport.shared_memory.control_page import ControlPage
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.peers import Peers
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.segments import SegmentFile
from dgcl.transport.shared_memory.waits import pack_tag

_log = logging.getLogger("dgcl")

_CLOSE_POLL = 0.005
_LIKELY_ROW_BYTES = 512
_MOST_RESERVED = 256 << 20


class DeviceExchange:
    """One rank's side of a communicator on a device. Construction is collective.

    Args:
        program: This rank's program.
        control: The control plane.
        timeout: Seconds without progress on the device after which a call has failed.
        device: This rank's device.
        network: Joins it to ranks on other machines; None: all share memory.

    Attributes:
        bytes_sent: ``(2, P)`` int64: bytes that calls so far write to each peer, by expand and by fold.
        pool: The rank's buffers.
        staged_rows: Rows that leave by staging memory, in an expand and in a fold: to ranks out of reach.
    """

    def __init__(
        self,
        program: Program,
        control: Control,
        timeout: float,
        device: Device,
        network: Network | None = None,
    ) -> None:
        check_agreement(control, program)
        self._program, self._device, self._timeout = program, device, timeout
        self._process = os.getpid()
        self._file = SegmentFile()
        control_page = ControlPage.create(self._file, program.world_size)
        peers = _peers(control, self._file, control_page, network)
        with device.current():
            self._connections = connect(device, control, network)
        self.pool = DevicePool(device, self._connections.directory.add)
        with device.current():
            self._reserve(control)
        self._watchdog = Watchdog(
            self._connections, self.pool, program, control_page, peers, timeout, network
        )
        self._control_page, self._peers, self._network = control_page, peers, network
        addresses, endpoint = self._connections.addresses, self._connections.endpoint
        self._other_streams: list[int] = []  # for copies out and in, and for the network
        if addresses.staged or endpoint is not None:
            with device.current():
                copies = [device.driver.create_stream() if addresses.staged else 0 for _ in range(2)]
            self._other_streams = [*copies, 0 if endpoint is None else endpoint.stream]
        self.staged_rows = [
            int(
                schedule.send_count[
                    np.isin(schedule.send_peer, list(addresses.staged | addresses.partners))
                ].sum()
            )
            for schedule in (program.expand, program.fold)
        ]
        self._kinds: dict[tuple[int, int, str, int], Operations] = {}
        with device.current():
            self._switched = device.driver.create_event()
            self._ended = device.driver.create_event()
        self._call = 0
        self._closed = False
        others = self._connections.shares_device_with(self._process, same=False)
        with device.current():
            # A rank that is a thread waits in this process, and may wait for what is being loaded.
            device.load("enter", "announce", "wait", "resolve", "signal", "gather")
            if self._connections.shares_device_with(self._process, same=True):
                device.load("sum")
        control.barrier()
        self._stream_waits = device.waits_in_streams and bool(others)
        self._shared = self._connections.shares_device_with(self._process, same=True)
        if self._shared and os.environ.get("CUDA_MODULE_LOADING", "").upper() != "EAGER":
            _log.info(
                "rank %d shares a GPU with other threads of its process: start it with CUDA_MODULE_LOADING=EAGER, or "
                "a kernel that is loaded when it is first used may wait for a wait that it would end",
                program.rank,
            )
        self.bytes_sent = np.zeros((2, program.world_size), np.int64)
        self._rows_to = np.zeros((2, program.world_size), np.int64)
        for verb, schedule in enumerate((program.expand, program.fold)):
            np.add.at(self._rows_to[verb], schedule.send_peer, schedule.send_count.sum(1))

    def _reserve(self, control: Control) -> None:
        """Allocate what first calls are likely to need; peers open it now, while no kernel runs that could delay them."""
        program = self._program
        rows = program.num_local + program.num_relay + program.num_arrivals
        try:
            block = self.pool.allocate(min(2 * rows * _LIKELY_ROW_BYTES, _MOST_RESERVED), 0)
            self.pool.release(block)
        except MemoryError:  # calls may need less
            _log.debug("rank %d: no memory to reserve", program.rank)
        control.barrier()
        self._connections.map_new()

    def expand(self, rows: Tensor) -> Tensor:
        """``(num_owned, *F)`` to ``(num_local, *F)``: owned and halo rows."""
        with self._device.current():
            return self._expand(rows)

    def fold(self, rows: Tensor) -> Tensor:
        """``(num_local, *F)``, which is only read, to the sums ``(num_owned, *F)`` over all ranks."""
        with self._device.current():
            return self._fold(rows)

    def _expand(self, rows: Tensor) -> Tensor:
        program = self._program
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        stream = self._begin()
        rows = rows.contiguous()
        buffer = self.pool.allocate(program.num_local * kind.row_bytes, stream)
        relay = self._scratch(program.num_relay * kind.row_bytes, stream)
        result = self._as_tensor(buffer, (program.num_local, *rows.shape[1:]), rows.dtype)
        # Blocks lie at multiples of 256 bytes, here and at the peers.
        operations = self._operations(EXPAND, kind.row_bytes, rows.dtype, unit_of(kind.row_bytes))
        second = relay.address if relay else buffer.address
        staging = self._scratch(self.staged_rows[EXPAND] * kind.row_bytes, stream)
        bases = buffer.address, second, staging.address if staging else 0
        parameters = enter_parameters(
            pack_tag(EXPAND, kind), buffer.address, second, 0, bases[2], buffer, relay
        )
        copy = buffer.address, rows.data_ptr()
        self._enqueue(EXPAND, operations, stream, parameters, copy, bases, rows, kind.row_bytes)
        for scratch in (relay, staging):
            if scratch is not None:
                self.pool.release(scratch)
        return result

    def _fold(self, rows: Tensor) -> Tensor:
        program = self._program
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        stream = self._begin()
        rows = rows.contiguous()
        arrivals = self.pool.allocate(program.num_arrivals * kind.row_bytes, stream)
        buffer = self.pool.allocate(program.num_owned * kind.row_bytes, stream)
        result = self._as_tensor(buffer, (program.num_owned, *rows.shape[1:]), rows.dtype)
        unit = unit_of(kind.row_bytes, rows.data_ptr(), item_bytes=rows.dtype.itemsize)
        operations = self._operations(FOLD, kind.row_bytes, rows.dtype, unit)
        staging = self._scratch(self.staged_rows[FOLD] * kind.row_bytes, stream)
        bases = arrivals.address, arrivals.address, staging.address if staging else 0
        parameters = enter_parameters(
            pack_tag(FOLD, kind), rows.data_ptr(), arrivals.address, buffer.address, bases[2], arrivals, None
        )
        self._enqueue(FOLD, operations, stream, parameters, (0, 0), bases, rows, kind.row_bytes)
        self.pool.release(arrivals)
        if staging is not None:
            self.pool.release(staging)
        return result

    @property
    def device(self) -> Device:
        """This rank's."""
        return self._device

    @property
    def reasons(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        if self._network is None:
            return self._connections.reasons
        return [self._network.reason(peer) or why for peer, why in enumerate(self._connections.reasons)]

    @property
    def devices(self) -> list[str]:
        """UUID of each rank's device; equal for ranks that share one."""
        return [descriptor.uuid for descriptor in self._connections.descriptors]

    def use_on(self, rows: Tensor, stream: int) -> None:
        """Say that a result is read on another stream than that of the calls, and may be freed before that is done.

        Args:
            rows: A result of this communicator, or a view that begins where it begins.
            stream: Handle of the stream.
        """
        self.pool.use_on(rows.data_ptr(), stream)

    def synchronize(self) -> None:
        """Wait on the host until the current stream has done everything, and raise what went wrong."""
        with self._device.current():
            self._device.driver.synchronize_stream(self._device.tensors.current_stream())
        if self._watchdog.failure is None and self._watchdog.unfinished:
            self._watchdog.name_fault()
        self.check_usable()

    def fail(self, error: CommError) -> None:
        """Poison the communicator, tell the peers why, and let the device stop."""
        if not self._closed and os.getpid() == self._process:
            self._watchdog.fail(error)

    def check_usable(self) -> None:
        """Raise unless a call can be made now."""
        rank = self._program.rank
        if os.getpid() != self._process:
            raise ValueError(
                f"rank {rank}: this process is a fork of the rank's process {self._process}, which alone may use "
                "the communicator"
            )
        if self._closed:
            raise ValueError(
                f"rank {rank}: this communicator is closed; build a new one with build_comm_info"
            )
        failure = self._watchdog.failure
        if failure is not None:
            raise type(failure)(
                f"rank {rank}: this communicator is unusable since an earlier call failed ({failure}); close it "
                "and build a new one"
            )

    def poison(self) -> None:
        """Nothing: free blocks may still be read by work that is queued."""

    def close(self) -> None:
        """Leave when the device has done this rank's calls. Idempotent, not collective; results stay valid."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            return
        with self._device.current():
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
        while not self._device.driver.has_happened(self._ended) and time.monotonic() < end:
            time.sleep(_CLOSE_POLL)

    def _begin(self) -> int:
        """Check that a call may be made, and put its stream behind that of the last call; returns the handle."""
        self.check_usable()
        driver, pool = self._device.driver, self.pool
        stream = self._device.tensors.current_stream()
        if self._shared and stream in DEFAULT_STREAMS:
            raise ValueError(
                f"rank {self._program.rank} and rank {self._shared[0]} are threads of one process, share a GPU, "
                "and would share its default stream, where each waits for the other for ever; let every such "
                "rank run under torch.cuda.stream(torch.cuda.Stream())"
            )
        pool.capturing = bool(stream) and driver.is_capturing(stream)
        if pool.capturing:
            if self._connections.addresses.staged:
                raise RuntimeError(
                    f"rank {self._program.rank} exchanges rows with some ranks through the host's memory; such a "
                    "call cannot be captured into a CUDA graph"
                )
            self._stream_waits = False
            return stream
        if pool.last_stream is not None and pool.last_stream != stream:
            driver.record_event(self._switched, pool.last_stream)
            driver.wait_event(stream, self._switched)
        pool.last_stream = stream
        return stream

    def _scratch(self, num_bytes: int, stream: int) -> Block | None:
        return self.pool.allocate(num_bytes, stream) if num_bytes else None

    def _operations(self, verb: int, row_bytes: int, dtype: torch.dtype, unit: int) -> Operations:
        key = (verb, row_bytes, str(dtype) if verb == FOLD else "", unit)
        if key not in self._kinds:
            if self.pool.capturing:
                raise RuntimeError(
                    "a call of this kind is captured into a CUDA graph before one was made outside: run the step "
                    "once, or better thrice, before capturing it"
                )
            kind = row_type(dtype, row_bytes // dtype.itemsize)
            connections = self._connections
            self._kinds[key] = Operations(
                self._device,
                self._program,
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
        verb: int,
        operations: Operations,
        stream: int,
        parameters: tuple[int, ...],
        copy: tuple[int, int],
        bases: tuple[int, int, int],
        rows: Tensor,
        row_bytes: int,
    ) -> None:
        driver, tables = self._device.driver, self._connections.tables
        self._device.tensors.keep(rows, stream)
        if not self.pool.capturing:
            self._call += 1
            if not driver.has_happened(tables.event):
                driver.wait_event(stream, tables.event)
        try:
            streams = [stream, *self._other_streams]
            operations.enqueue(streams, self._call, parameters, copy, bases, stream_waits=self._stream_waits)
            if not self.pool.capturing:
                driver.record_event(self._ended, stream)
        except CudaError as error:
            self.fail(CommError(f"rank {self._program.rank}: a call could not be enqueued: {error}"))
            raise
        except CommError as error:
            self.fail(CommError(f"rank {self._program.rank}: a call could not be enqueued: {error}"))
            self.check_usable()
        if not self.pool.capturing:
            self.bytes_sent[verb] += self._rows_to[verb] * row_bytes

    def _as_tensor(self, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor over a block, which goes back to the pool when the tensor's storage dies."""
        num_bytes = math.prod(shape) * dtype.itemsize
        memory = self.pool.tensor_over(block, max(num_bytes, 1))
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype, device=self._device.tensors.device)
        return memory.view(dtype).view(shape)


def _peers(control: Control, file: SegmentFile, control_page: ControlPage, network: Network | None) -> Peers:
    """The other ranks: those of this machine by their memory, the others by the control pages that stand in for them."""
    if network is None:
        return Peers(control, file, control_page, "memory")
    peers = Peers(control, file, control_page, network.channel)
    for peer in network.remote:
        peers.control_pages[peer] = network.stand_in(peer)
    return peers
