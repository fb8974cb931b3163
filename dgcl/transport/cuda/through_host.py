"""Exchanges device rows through the hosts: copy down, run the plan on the CPU, copy up.

If two ranks of a job share no memory, their devices cannot reach each other either. Then all ranks use this
transport. A call copies its rows from the device into the CPU runtime's buffer, by one copy engine, into memory
that is locked at first use. The runtime moves them through shared memory and the network channel
(:mod:`dgcl.transport.network`), with the same program, deadlines and messages as on the CPU, and the result is
copied back to the device. The host waits in every call for the copy down and for its peers, so such calls cannot be
captured into CUDA graphs. The copy up is asynchronous, in the order of the call's stream.

Compared with device-to-device transfers, rows cross the bus twice and the exchange runs at the speed of the hosts.
It is the fallback if NCCL (:mod:`dgcl.transport.cuda.nccl`) is missing or does not work.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.errors import CommError
from dgcl.program.model import Program
from dgcl.ranks.control import Control
from dgcl.transport.base import WholeCalls
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.memory import MemoryReport, predict_memory
from dgcl.transport.shared_memory import Runtime
from dgcl.transport.shared_memory.dtypes import row_type
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.segments import Segment

_log = logging.getLogger("dgcl")

_POLL = 1e-3


class HostExchange(WholeCalls):
    """Transport of one rank whose device rows travel through the hosts.

    Args:
        programs: This rank's programs by the names of their exchanges.
        control: The control plane; construction is collective.
        device: This rank's device.
        runtime: The runtime of the host, which is closed with this.
        why: Why rows cannot travel directly between devices.

    Attributes:
        device: This rank's.
        devices: Which device each rank is on: equal for ranks that share one.
        bytes_sent: ``(E, 2, P)`` int64: bytes written to each peer, by exchange and verb.
        shares_memory: Whether all ranks reach each other's memory: always False here.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        control: Control,
        device: Device,
        runtime: Runtime,
        why: str = "",
    ) -> None:
        self._programs, self.device, self._runtime = tuple(programs.values()), device, runtime
        self._rank = control.rank
        self.devices: list[str] = control.exchange(device.uuid)
        self.bytes_sent: np.ndarray = runtime.bytes_sent
        self.shares_memory = False
        self._locked: dict[int, Segment] = {}
        self._may_lock = True
        self._copying_up: deque[tuple[int, Block]] = (
            deque()
        )  # blocks that copies to the device read, and their events
        self._events: list[int] = []
        self._closed = False
        if self._rank == 0:
            _log.info(
                "ranks share no memory, or are not to use it: rows of devices go through the hosts' memory, and "
                "between hosts through the network%s",
                f" ({why})" if why else "",
            )
        through = f"through the hosts{f' ({why})' if why else ''}"
        self._reasons = [
            reason if peer == self._rank else f"{reason}; {through}"
            for peer, reason in enumerate(runtime.reasons)
        ]

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Exchange ``(num_owned, *F)`` to ``(num_local, *F)``: owned and halo rows."""
        program, runtime = self._programs[exchange], self._runtime
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        with self.device.current():
            stream = self._begin()
            block = runtime.expand_buffer(kind, exchange)
            self._copy_down(rows.contiguous(), block, stream)
            runtime.expand(block, kind, exchange=exchange)
            return self._copy_up(block, (program.num_local, *rows.shape[1:]), rows.dtype, stream)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Sum ``(num_local, *F)``, which is only read, over all ranks to ``(num_owned, *F)``."""
        program, runtime = self._programs[exchange], self._runtime
        kind = row_type(rows.dtype, math.prod(rows.shape[1:]))
        with self.device.current():
            stream = self._begin()
            below = runtime.allocate(program.num_local * kind.row_bytes)
            self._copy_down(rows.contiguous(), below, stream)
            block = runtime.fold(below.address, kind, exchange)
            runtime.pool.release(below)
            return self._copy_up(block, (program.num_owned, *rows.shape[1:]), rows.dtype, stream)

    def describe(self) -> list[str]:
        """Describe for each rank how rows travel to and from it, and why."""
        return self._reasons

    def memory(
        self, widths: Sequence[int | tuple[int, int]], dtype: torch.dtype, **kinds: Any
    ) -> MemoryReport:
        """Predict the memory of buffers and tables; see :func:`dgcl.transport.memory.predict_memory`."""
        return predict_memory(self._programs, widths, dtype, **kinds)

    def record_stream(self, rows: Tensor, stream: int) -> None:
        """Do nothing: results are torch's own memory, which the tensor's ``record_stream`` protects."""

    def synchronize(self) -> None:
        """Block the host until the current stream has finished, and raise any error."""
        with self.device.current():
            self.device.driver.synchronize_stream(self.device.tensors.current_stream())
        self.check_usable()

    @property
    def failure(self) -> CommError | None:
        """Why it is unusable; None if it is not, or was closed."""
        return self._runtime.failure

    def fail(self, error: CommError) -> None:
        """Tell the peers why this rank has stopped."""
        self._runtime.fail(error)

    def check_usable(self) -> None:
        """Raise unless a call can be made now."""
        self._runtime.check_usable()

    def close(self) -> None:
        """Release all buffers once the device has read them. Idempotent, not collective; results stay valid."""
        if self._closed:
            return
        self._closed = True
        try:
            self._give_back()
        finally:
            self._runtime.close()

    def _give_back(self) -> None:
        with self.device.current():
            try:
                # They may be on several streams.
                while not all(self.device.driver.has_happened(event) for event, _ in self._copying_up):
                    time.sleep(_POLL)
                for event in [*self._events, *(event for event, _ in self._copying_up)]:
                    self.device.driver.destroy_event(event)
                for segment in self._locked.values():
                    self.device.driver.unregister_host(segment.address)
            except CudaError as error:
                _log.debug("rank %d: memory is not given back: %s", self._rank, error)
        self._copying_up.clear()

    def _begin(self) -> int:
        """Return the call's stream, after freeing blocks whose copies up have finished."""
        self.check_usable()
        driver = self.device.driver
        stream = self.device.tensors.current_stream()
        if stream and driver.is_capturing(stream):
            raise RuntimeError(
                f"rank {self._rank} exchanges rows through its host; such a call cannot be captured into a "
                "CUDA graph"
            )
        while self._copying_up and driver.has_happened(self._copying_up[0][0]):
            event, block = self._copying_up.popleft()
            self._events.append(event)
            self._runtime.pool.release(block)
        return stream

    def _copy_down(self, rows: Tensor, block: Block, stream: int) -> None:
        """Copy rows to a host block and wait for the copy."""
        driver = self.device.driver
        self._lock(block.segment)
        if rows.nbytes == 0:
            return
        self.device.tensors.keep(rows, stream)
        try:
            driver.copy_to_host(block.address, rows.data_ptr(), rows.nbytes, stream)
            driver.synchronize_stream(stream)
        except CudaError as error:
            self.fail(CommError(f"rank {self._rank}: rows do not come down from the device: {error}"))
            raise

    def _copy_up(self, block: Block, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> Tensor:
        """Start copying a block to a device tensor and return it; the block is freed after the copy."""
        driver = self.device.driver
        result = torch.empty(shape, dtype=dtype, device=self.device.tensors.device)
        self._lock(block.segment)
        if result.nbytes:
            self.device.tensors.keep(result, stream)
            driver.copy_to_device(result.data_ptr(), block.address, result.nbytes, stream)
        event = self._events.pop() if self._events else driver.create_event()
        driver.record_event(event, stream)
        self._copying_up.append((event, block))
        return result

    def _lock(self, segment: Segment) -> None:
        """Page-lock a segment, once; copies from unlocked memory are also correct, only slower."""
        if not self._may_lock or segment.address in self._locked:
            return
        try:
            self.device.driver.register_host(segment.address, segment.size)
            self._locked[segment.address] = segment
        except CudaError as error:
            self._may_lock = False
            _log.info("rank %d: the driver cannot lock memory of the host: %s", self._rank, error)
