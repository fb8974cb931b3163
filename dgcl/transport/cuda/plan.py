"""The operations of one kind of call (a verb, a row size, an element type), prepared once.

What differs from call to call is written into the prepared operations before they are enqueued: the addresses
of this rank's buffers (parameters of the kernel ``enter``, which puts them into tables on the device), and
the copy of an expand's own rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dgcl.kernels.cuda_catalogue import sum_name
from dgcl.kernels.cuda_launch import Prepared
from dgcl.program.model import Program
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.groups import Ends, Groups
from dgcl.transport.cuda.lane_copies import LaneCopies
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.program import BEGUN, EXPAND, GROUPED, HANDED, JOINED, MET, Launch, Wires, lay_out
from dgcl.transport.shared_memory.row_types import RowType

_CHUNK = 1 << 20
_ALIGN = 256
_STATIC_PARAMETERS = 2  # of ``enter``: the tables
_MARKS = (BEGUN, HANDED, GROUPED, MET, JOINED)


class Tables:
    """Tables in device memory that stay as long as the communicator; they are on their way when
    :meth:`upload` returns.

    Attributes:
        event: Has happened when all of them are there.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._chunks: list[int] = []
        self._free = self._end = 0
        self.event = device.driver.create_event()

    def upload(self, table: np.ndarray) -> int:
        """The address that a table will have on the device."""
        raw = np.ascontiguousarray(table)
        address = self.allocate(raw.nbytes)
        if raw.nbytes:
            self._device.driver.copy_to_device(address, raw.ctypes.data, raw.nbytes, self._device.side)
        self._device.driver.record_event(self.event, self._device.side)
        return address

    def allocate(self, num_bytes: int) -> int:
        """Device memory for a table, zero."""
        size = max(-(-num_bytes // _ALIGN), 1) * _ALIGN
        if self._free + size > self._end:
            chunk = max(size, _CHUNK)
            self._free = self._device.driver.allocate(chunk)
            self._end = self._free + chunk
            self._chunks.append(self._free)
            self._device.driver.clear(self._free, chunk, self._device.side)
        address, self._free = self._free, self._free + size
        return address

    def free(self) -> None:
        """Give the memory back; no kernel may use it any more."""
        while self._chunks:
            self._device.driver.free(self._chunks.pop())
        self._device.driver.destroy_event(self.event)


class Plan:
    """One kind of call.

    Args:
        device, program, wires, tables: Of this rank.
        verb: EXPAND or FOLD.
        row_type: What a row is.
        unit: What a thread moves at a time; divides row size and addresses.
        lanes: The way through the host; None where no peer needs it.
        ends: The way to other machines; None where no rows go there.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        verb: int,
        wires: Wires,
        tables: Tables,
        row_type: RowType,
        unit: int,
        lanes: Lanes | None = None,
        ends: Ends | None = None,
    ) -> None:
        kernel = f"gather_{unit}" if verb == EXPAND else sum_name(row_type.name, unit)
        uploaded: dict[int, np.ndarray] = {}

        def upload(table: np.ndarray) -> int:
            address = tables.upload(table)
            uploaded[address] = table
            return address

        launches = lay_out(
            program,
            verb,
            wires,
            kernel,
            unit,
            row_type.row_bytes,
            device.blocks_at_once(kernel),
            upload,
        )
        own_bytes = program.num_owned * row_type.row_bytes if verb == EXPAND else 0

        rest = device, program, verb, row_type.row_bytes

        def lane_copies(prepared: Prepared) -> LaneCopies | None:
            return None if lanes is None else LaneCopies(*rest, lanes, wires, prepared, upload)

        def groups(prepared: Prepared) -> Groups | None:
            return None if ends is None else Groups(*rest, ends, wires, prepared, upload)

        self._ways = tuple(
            _Way(device, wires, launches, uploaded, own_bytes, waits, lane_copies, groups)
            for waits in (False, True)
        )

    def enqueue(
        self,
        streams: list[int],
        call: int,
        entered: tuple[int, ...],
        copy: tuple[int, int] = (0, 0),
        bases: tuple[int, int, int] = (0, 0, 0),
        *,
        stream_waits: bool = False,
    ) -> None:
        """Put a call into a stream.

        Args:
            streams: Its handle; behind it those for copies to and from the host, and for the network.
            call: The call's number, for waits by the stream itself.
            entered: The last parameters of ``enter``.
            copy: Where own rows go, and where they are.
            bases: Where peers' rows go, those that this rank only passes on, and rows on their way out.
            stream_waits: Let the stream itself wait for flags, before the kernels that do.
        """
        self._ways[stream_waits].enqueue(streams, call, entered, copy, bases)


class _Way:
    """A kind of call with one kind of waits."""

    def __init__(
        self,
        device: Device,
        wires: Wires,
        launches: list[Launch],
        uploaded: dict[int, np.ndarray],
        own_bytes: int,
        stream_waits: bool,
        make_copies: Callable[[Prepared], LaneCopies | None],
        make_groups: Callable[[Prepared], Groups | None],
    ) -> None:
        self._prepared = prepared = Prepared(device.driver)
        if stream_waits and not device.waits_in_streams:
            return
        first = (wires.addresses, wires.words)
        self._entered = prepared.launch(device.kernels["enter"], 1, 1, *first, *[0] * 11)
        self._copy = len(prepared) if own_bytes else -1
        prepared.copy(0, 0, own_bytes)
        self._lane_copies, self._groups = make_copies(prepared), make_groups(prepared)
        for launch in launches:
            if launch.kernel in _MARKS:
                for way in (self._lane_copies, self._groups):
                    if way is not None:
                        way.add(launch)
                continue
            if stream_waits and launch.kernel == "wait":
                # The kernel comes after all the same: it tells a stop from a flag.
                for flag in uploaded[launch.parameters[1]]:
                    address, multiplier, offset = (
                        int(flag[name]) for name in ("address", "multiplier", "offset")
                    )
                    prepared.wait_value(address, multiplier, offset)
            kernel = device.kernels[launch.kernel]
            prepared.launch(kernel, launch.blocks, launch.threads, *launch.parameters)

    def enqueue(
        self,
        streams: list[int],
        call: int,
        entered: tuple[int, ...],
        copy: tuple[int, int],
        bases: tuple[int, int, int],
    ) -> None:
        self._entered[_STATIC_PARAMETERS:] = entered
        if self._copy >= 0:
            self._prepared.place_copy(self._copy, *copy)
        if self._lane_copies is not None:
            self._lane_copies.place(bases)
        if self._groups is not None:
            self._groups.enqueue(streams, call, bases)
        else:
            self._prepared.enqueue(streams, call)
