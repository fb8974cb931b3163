"""Transport of rows on GPUs: enqueues expand and fold on the caller's stream, without waiting for the device.

A call takes blocks from the pool; the hosts agree on it, and learn where each wants its rows
(:mod:`dgcl.transport.cuda.host_agreement`); then each writes the addresses into its ring and enqueues its prepared
operations (:mod:`dgcl.transport.cuda.operations`). Errors on the device occur later: the watchdog ends the call there,
and the next call raises, or ``synchronize``.
Called by `__init__` and `dgcl/calibration/timing`. Free to change while rows and sums are right on any streams, without
a wait for the device (`tests/dgcl/transport/cuda/test_exchange.py`), and every rank hears of failures
(`tests/dgcl/transport/cuda/test_faults.py`).
"""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.kernels.cuda_shapes import unit_of
from dgcl.program.rank_program import Program
from dgcl.ranks.control import Control
from dgcl.transport.base import Transport
from dgcl.transport.common.calls import pack_tag
from dgcl.transport.common.dtypes import row_type
from dgcl.transport.common.pool import Block
from dgcl.transport.common.program_agreement import check_agreement
from dgcl.transport.cuda.connect_devices import connect
from dgcl.transport.cuda.control_block import RING, in_time
from dgcl.transport.cuda.device_pool import DevicePool
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.host_agreement import Hosts
from dgcl.transport.cuda.operations import Operations
from dgcl.transport.cuda.peer_memory import PLACE_WORDS
from dgcl.transport.cuda.program import EXPAND, FOLD
from dgcl.transport.cuda.watchdog import Watchdog
from dgcl.transport.describe import profiled
from dgcl.transport.tried_rows import try_rows

#: At most so many calls, and operations (unless one call has more), are enqueued and not finished.
MOST_CALLS = 32
_MOST_OPERATIONS = 768

_POLL = 50e-6
#: Seconds without progress after which a first call, which nobody has asked for, has failed.
_PROVING = 15.0

assert MOST_CALLS < RING


# Hosts go on in step with each other, up to 32 calls ahead of their devices: the driver has room for about a thousand
# operations, and then blocks. The calls of a communicator are in one order, whatever streams they are made on: one on
# another stream than its predecessor waits, on the device, for that stream. No call can be captured into a CUDA
# graph: a replay would take place without the hosts' agreement.
class DeviceExchange(Transport):
    """The transport of a rank whose rows are on a device. Construction is collective.

    Args:
        programs: This rank's programs by the names of their exchanges.
        control: The control plane.
        timeout: Seconds without progress after which a call has failed.
        device: This rank's device.

    Attributes:
        bytes_sent: ``(E, 2, P)`` int64: bytes that calls so far write to each peer, by exchange and verb.
        pool: The rank's buffers.
        device: This rank's.
    """

    def __init__(
        self, programs: Mapping[str, Program], control: Control, timeout: float, device: Device
    ) -> None:
        for rank, problem in enumerate(control.exchange(device.problem)):
            if problem:
                raise CommError(f"rank {rank}: {problem}")
        check_agreement(control, programs)
        # Done flags count the stages of the longest program (dgcl.transport.common.control_page).
        num_stages = max(program.num_stages for program in programs.values())
        programs = {name: replace(each, num_stages=num_stages) for name, each in programs.items()}
        self._named, self._programs = programs, tuple(programs.values())
        self._rank, self.device, self._timeout = control.rank, device, timeout
        self._hosts = Hosts(control, timeout, tuple(programs))
        self._runtime = self._hosts.runtime
        super().__init__(self._runtime)
        try:
            with device.current():
                self._connections = connect(device, control)
                self.pool = DevicePool(device, self._connections.memory.export)
                self._watchdog = Watchdog(self._connections, self.pool, self._runtime, programs, timeout)
                self._switched = device.driver.create_event()
        except BaseException:
            self._runtime.close()
            raise
        self._operations: dict[tuple[int, int, int, str, int], Operations] = {}
        self._call, self._most_operations = 0, 1
        self._closed = False
        self.bytes_sent = np.zeros((len(programs), 2, control.world_size), np.int64)
        self._rows_to = np.zeros_like(self.bytes_sent)
        for number, program in enumerate(self._programs):
            for verb, schedule in enumerate((program.expand, program.fold)):
                np.add.at(self._rows_to[number, verb], schedule.send_peer, schedule.send_count.sum(1))

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_owned, *F)`` to ``(num_local, *F)``: owned and halo rows."""
        with self.device.current(), profiled(self._programs[exchange], "expand", rows):
            return self._exchange(EXPAND, rows, exchange)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """``(num_local, *F)``, which is only read, to the sums ``(num_owned, *F)`` over all ranks."""
        with self.device.current(), profiled(self._programs[exchange], "fold", rows):
            return self._exchange(FOLD, rows, exchange)

    def _exchange(self, verb: int, rows: Tensor, exchange: int) -> Tensor:
        program, runtime, driver = self._programs[exchange], self._runtime, self.device.driver
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        size = kind.row_bytes
        stream = self._stream()
        rows = rows.contiguous()
        # Blocks lie at multiples of 256 bytes, here and at the peers.
        unit = (
            unit_of(size)
            if verb == EXPAND
            else unit_of(size, rows.data_ptr(), item_bytes=rows.dtype.itemsize)
        )
        runtime.check_usable()
        try:
            operations = self._prepare(exchange, verb, rows.dtype, size, unit)
            expands = verb == EXPAND
            num_rows, num_second = (
                (program.num_local, program.num_relay)
                if expands
                else (program.num_owned, program.num_arrivals)
            )
            block = self.pool.allocate(num_rows * size, stream)
            result = self._as_tensor(block, (num_rows, *rows.shape[1:]), rows.dtype)
            second = self.pool.allocate(num_second * size, stream)  # relay rows, or arrivals
        except BaseException as error:  # the others make the call that needs these
            reason = CommError(f"out of memory: {error}") if isinstance(error, MemoryError) else error
            runtime.give_up(reason, runtime.next_call)
            raise
        written = (block, second) if expands else (second,)  # by peers
        words = [
            word
            for each in written
            for word in self._connections.memory.place(each.segment.address, each.offset)
        ]
        words += [0] * (2 * PLACE_WORDS - len(words))
        try:
            places = self._hosts.agree(self._call + 1, pack_tag(verb, kind, exchange), words)
            with self._watchdog.enqueuing:
                self._check_failure()
                self._call += 1
                self._watchdog.calls[self._call % RING] = exchange, verb
                own = [block.address if expands else rows.data_ptr(), second.address, block.address]
                peers = [
                    0 if peer is None else peer.address(words)
                    for peer, pair in zip(self._connections.peers, places.tolist(), strict=True)
                    for words in (pair[:PLACE_WORDS], pair[PLACE_WORDS:])
                ]
                self._connections.page.enter(self._call, [*own, *peers])
                self._follow(stream)
                self.device.tensors.keep(rows, stream)
                operations.enqueue(stream, rows.data_ptr(), block.address)
                driver.record_event(self._watchdog.ended, stream)
        except BaseException as error:  # the others have agreed on it, and enqueued it
            why = f"{error}" or type(error).__name__
            self.fail(CommError(f"rank {self._rank}: a call could not be enqueued: {why}"))
            raise
        self.pool.release(second)
        self.bytes_sent[exchange, verb] += self._rows_to[exchange, verb] * size
        return result

    def prove(self) -> str:
        """Expand and fold known rows by every exchange; why this must not be used, "" if all is right. Collective."""
        self._watchdog.timeout = min(self._timeout, _PROVING)
        try:
            wrong, _ = try_rows(self, self._named, self.device.tensors.device)
        except Exception as error:  # whatever it is, the others wait for the result
            return f"a first call failed: {error}"
        self._watchdog.timeout = self._timeout
        return wrong or ""

    def describe(self) -> list[str]:
        """For each rank how rows travel to and from it, and why."""
        direct = "device memory: each writes into the other's by CUDA IPC"
        return ["this rank" if rank == self._rank else direct for rank in range(len(self._connections.peers))]

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
        self._watchdog.name_fault()
        self._check_failure()

    def fail(self, error: CommError) -> None:
        """Poison the communicator, report to the peers why, and let the device stop."""
        if not self._closed and os.getpid() == self._runtime.process:
            self._watchdog.fail(error)

    def close(self) -> None:
        """Leave when the device has done this rank's calls. Idempotent, not collective; results stay valid."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._runtime.process:
            driver = self.device.driver
            with self.device.current():  # the watchdog ends those that do not end
                in_time(lambda: driver.has_happened(self._watchdog.ended), self._timeout + 5.0)
            self._watchdog.leave()
        self._runtime.close()

    def _check_failure(self) -> None:
        """Raise if the communicator was closed or has failed."""
        self._runtime.check_present()
        if self._runtime.failure is not None:
            self._runtime.check_usable()

    def _stream(self) -> int:
        """The current stream, on which a call is about to be made.

        Raises:
            RuntimeError: It is being captured.
        """
        stream = self.device.tensors.current_stream()
        if stream and self.device.driver.is_capturing(stream):
            raise RuntimeError(
                f"rank {self._rank}: a call cannot be captured into a CUDA graph, because the hosts agree on every "
                "call; capture what lies between calls"
            )
        return stream

    def _follow(self, stream: int) -> None:
        """Put a call's stream behind that of the last call, and behind the upload of its tables."""
        driver, pool, tables = self.device.driver, self.pool, self._connections.tables
        if pool.last_stream is not None and pool.last_stream != stream:
            driver.record_event(self._switched, pool.last_stream)
            driver.wait_event(stream, self._switched)
        pool.last_stream = stream
        if not driver.has_happened(tables.event):
            driver.wait_event(stream, tables.event)

    def _prepare(self, exchange: int, verb: int, dtype: torch.dtype, size: int, unit: int) -> Operations:
        """The operations of a kind of call, once another call may be enqueued."""
        key = (exchange, verb, size, str(dtype) if verb == FOLD else "", unit)
        if key not in self._operations:
            kind = row_type(dtype, size // dtype.itemsize)
            operations = Operations(self._connections, self._programs[exchange], verb, kind, unit)
            self._operations[key] = operations
            self._most_operations = max(self._most_operations, len(operations))
        most = max(1, min(MOST_CALLS, _MOST_OPERATIONS // self._most_operations))
        while self._call - self._connections.page.finished() >= most:
            self._check_failure()
            time.sleep(_POLL)
        return self._operations[key]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of torch's memory: buffers of calls are mapped by peers, and this need not be."""
        return torch.empty(shape, dtype=dtype, device=self.device.tensors.device)

    def _as_tensor(self, block: Block, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor over a block, which goes back to the pool when the tensor's storage dies."""
        num_bytes = math.prod(shape) * dtype.itemsize
        memory = self.pool.tensor_over(block, max(num_bytes, 1))
        if num_bytes == 0:
            return self.empty(shape, dtype)
        return memory.view(*shape[:-1], -1).view(dtype)  # the type last, as in shared_memory/results.py
