"""The operations of one kind of call (a verb, a row size, an element type), prepared once.

What differs from call to call is written into the prepared operations before they are enqueued: the addresses of this
rank's buffers (parameters of the kernel ``begin``, which puts them into tables on the device), and those of the copy of
an expand's own rows.
"""

from __future__ import annotations

import numpy as np

from dgcl.kernels.cuda_catalogue import sum_name
from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import NUM_ENTERED, Begin, SignalWait
from dgcl.program.model import Program
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.groups import Endpoint, Groups
from dgcl.transport.cuda.lane_copies import LaneCopies
from dgcl.transport.cuda.lanes import Lanes
from dgcl.transport.cuda.program import (
    BEGUN,
    EXPAND,
    GROUPED,
    JOINED,
    PACKED,
    RECEIVED,
    CallLayout,
    Launch,
    RankAddresses,
    fuse,
)
from dgcl.transport.cuda.staged_rows import CallKind
from dgcl.transport.cuda.tables import Tables
from dgcl.transport.shared_memory.pool import Block
from dgcl.transport.shared_memory.row_types import RowType

_MARKS = (BEGUN, PACKED, GROUPED, RECEIVED, JOINED)


def enter_parameters(
    tag: int, local: int, second: int, result: int, staging: int, buffer: Block, relay: Block | None
) -> tuple[int, ...]:
    """The parameters of the kernel ``begin`` that differ from call to call.

    Args:
        tag: Verb and row type of the call.
        local, second, result, staging: Addresses for the first slots of the address table.
        buffer, relay: Where peers may write.
    """
    places = [0] * 6
    for i, block in enumerate((buffer, relay)):
        if block is not None:
            places[3 * i : 3 * i + 3] = block.segment.base, block.segment.size, block.offset
    return local, second, result, staging, tag, *places


class Operations:
    """The operations of one kind of call.

    Args:
        device, program, addresses, tables: Of this rank.
        verb: EXPAND or FOLD.
        row_type: Element type and shape of a row.
        unit: Bytes that a thread moves at a time; divides row size and addresses.
        lanes: Host lanes; None where no peer needs them.
        endpoint: For messages to other machines; None where no rows go there.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        verb: int,
        addresses: RankAddresses,
        tables: Tables,
        row_type: RowType,
        unit: int,
        lanes: Lanes | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        kernel = f"gather_{unit}" if verb == EXPAND else sum_name(row_type.name, unit)
        uploaded: dict[int, np.ndarray] = {}

        def upload(table: np.ndarray) -> int:
            address = tables.upload(table)
            uploaded[address] = table
            return address

        most = device.blocks_at_once(kernel)
        layout = CallLayout(program, verb, addresses, kernel, unit, row_type.row_bytes, most, upload)
        launches = list(layout.launches())
        kind = CallKind(device, program, addresses, verb, row_type.row_bytes, upload)
        # Two lists: waits by kernels, and by the stream itself before them.
        self._lists = tuple(
            _OperationList(
                kind,
                fuse(launches, waits_first=stream_waits),
                uploaded,
                lanes,
                endpoint,
                stream_waits=stream_waits,
            )
            for stream_waits in (False, True)
        )

    @property
    def num_operations(self) -> int:
        """How many operations a call puts into streams, at most."""
        return max(each.num_operations for each in self._lists)

    def enqueue(
        self,
        streams: list[int],
        call: int,
        enter_parameters: tuple[int, ...],
        copy: tuple[int, int] = (0, 0),
        bases: tuple[int, int, int] = (0, 0, 0),
        *,
        stream_waits: bool = False,
    ) -> None:
        """Put a call into a stream.

        Args:
            streams: Handles: of the call's stream, then those for copies to and from the host, and for the network.
            call: The call's number, for waits by the stream itself.
            enter_parameters: The last parameters of ``begin``.
            copy: Where own rows go, and where they are.
            bases: Addresses of the rows that peers write, of relay rows, and of the staging memory.
            stream_waits: Let the stream itself wait for flags, before the kernels that do.
        """
        self._lists[stream_waits].enqueue(streams, call, enter_parameters, copy, bases)


class _OperationList:
    """A kind of call with one kind of waits."""

    def __init__(
        self,
        kind: CallKind,
        launches: list[Launch],
        uploaded: dict[int, np.ndarray],
        lanes: Lanes | None,
        endpoint: Endpoint | None,
        *,
        stream_waits: bool,
    ) -> None:
        device = kind.device
        self._prepared = prepared = Prepared(device.driver)
        self._enter_parameters = np.zeros(NUM_ENTERED, np.int64)
        if stream_waits and not device.waits_in_streams:
            return
        own_bytes = kind.program.num_owned * kind.row_bytes if kind.verb == EXPAND else 0
        self._copy = len(prepared) if own_bytes else -1
        prepared.copy(0, 0, own_bytes)
        self._lane_copies = None if lanes is None else LaneCopies(kind, lanes, prepared, stream_waits)
        self._groups = None if endpoint is None else Groups(kind, endpoint, prepared)
        for launch in launches:
            if launch.kernel in _MARKS:
                for staged in (self._lane_copies, self._groups):
                    if staged is not None:
                        staged.add(launch)
                continue
            parameters = launch.parameters
            if stream_waits and isinstance(parameters, SignalWait):
                # The kernel follows all the same: it tells a stop from a flag.
                for table in (parameters.ready, parameters.awaited):
                    for flag in uploaded.get(table, ()):
                        prepared.wait_value(
                            int(flag["address"]), int(flag["multiplier"]), int(flag["offset"])
                        )
            entered = [0] * NUM_ENTERED if isinstance(parameters, Begin) else []
            values = prepared.launch(
                device.kernels[launch.kernel], launch.blocks, launch.threads, *parameters, *entered
            )
            if entered:
                self._enter_parameters = values[-NUM_ENTERED:]

    @property
    def num_operations(self) -> int:
        return len(self._prepared)

    def enqueue(
        self,
        streams: list[int],
        call: int,
        enter_parameters: tuple[int, ...],
        copy: tuple[int, int],
        bases: tuple[int, int, int],
    ) -> None:
        self._enter_parameters[:] = enter_parameters
        if self._copy >= 0:
            self._prepared.place_copy(self._copy, *copy)
        if self._lane_copies is not None:
            self._lane_copies.place(bases)
        if self._groups is not None:
            self._groups.enqueue(streams, call, bases)
        else:
            self._prepared.enqueue(streams, call)
