"""Prepares the copies and kernel launches of one kind of GPU call, to be enqueued many times.

A *kind* is an exchange, a verb (expand or fold), a row size and an element type. What differs from call to call is not
in it: kernels take the addresses of buffers from a ring in the host's page. Only copies get theirs before they are
enqueued.
Called by `device_exchange`. Free to change while a call enqueues what docs/gpu.md lists
(`tests/dgcl/transport/cuda/test_documented.py`), and every type and width is right
(`tests/dgcl/transport/cuda/test_exchange.py`).
"""

from __future__ import annotations

import numpy as np

from dgcl.kernels.cuda_catalogue import sum_name
from dgcl.kernels.cuda_launch import Prepared
from dgcl.program.rank_program import Program
from dgcl.transport.common.dtypes import RowType
from dgcl.transport.cuda.connect_devices import Connections
from dgcl.transport.cuda.program import EXPAND, CallLayout, fuse


class Operations:
    """The operations of one kind of call; making them loads kernels, which may have to wait for those that run.

    Args:
        connections, program: Of this rank.
        verb: EXPAND or FOLD.
        row_type: Element type and shape of a row.
        unit: Bytes that a thread moves at a time; divides row size and addresses.
    """

    def __init__(
        self, connections: Connections, program: Program, verb: int, row_type: RowType, unit: int
    ) -> None:
        device, addresses, row_bytes = connections.device, connections.addresses, row_type.row_bytes
        kernel = f"gather_{unit}" if verb == EXPAND else sum_name(row_type.name, unit)

        def upload(table: np.ndarray) -> int:
            return connections.tables.upload(table)

        most = device.blocks_at_once(kernel)
        layout = CallLayout(program, verb, addresses, kernel, unit, row_bytes, most, upload)
        self._prepared = prepared = Prepared(device.driver)
        self._copies_own = verb == EXPAND and program.num_owned * row_bytes > 0
        if self._copies_own:
            prepared.copy(0, 0, program.num_owned * row_bytes)
        for launch in fuse(list(layout.launches())):
            loaded = device.kernels[launch.kernel]
            prepared.launch(loaded, launch.blocks, launch.threads, *launch.parameters)

    def __len__(self) -> int:
        return len(self._prepared)

    def enqueue(self, stream: int, source: int, target: int) -> None:
        """Put a call into a stream; an expand's own rows are at ``source`` and go to ``target``."""
        if self._copies_own:
            self._prepared.place_copy(0, target, source)
        self._prepared.enqueue(stream)
