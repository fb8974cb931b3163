"""Test transfers at set-up: can this rank write into its peers' memory, and can streams wait for values?"""

from __future__ import annotations

import logging

import numpy as np

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import FLAG, FLAG_THREADS, SignalWait, records
from dgcl.transport.cuda.control_block import PROOF, ControlBlock, HostPage
from dgcl.transport.cuda.gpu import CudaError, Device
from dgcl.transport.cuda.tables import Tables

_log = logging.getLogger("dgcl")


def pattern(writer: int, reader: int) -> np.ndarray:
    """``(32,)`` int64 that ``writer`` writes at ``reader``: the first word by a kernel, the second half by a copy."""
    words = np.arange(PROOF // 8, dtype=np.int64) * 1_000_003 + writer * 65_537 + reader + 1
    words[1 : PROOF // 16] = 0
    return words


def write_patterns(
    device: Device, tables: Tables, rank: int, own: ControlBlock, blocks: list[ControlBlock | None]
) -> None:
    """Write this rank's pattern into every peer that could be opened; waits for the device."""
    prepared = Prepared(device.driver)
    for other, theirs in enumerate(blocks):
        if theirs is None or other == rank:
            continue
        words, half = pattern(rank, other), PROOF // 2
        flag = {"address": theirs.proof(rank), "offset": int(words[0])}
        signal = SignalWait(own.address, raised=tables.upload(records(FLAG, [flag])), num_raised=1)
        prepared.launch(device.kernels["signal_wait"], 1, FLAG_THREADS, *signal)
        prepared.copy(theirs.proof(rank) + half, tables.upload(words) + half, half)
    prepared.enqueue([device.side])
    device.driver.synchronize_stream(device.side)


def wrong_patterns(device: Device, page: HostPage, own: ControlBlock, rank: int) -> list[int]:
    """Ranks whose pattern has not arrived in this rank's control block; waits for the device."""
    page.start_snapshot(own)
    device.driver.synchronize_stream(device.side)
    snapshot = page.snapshot()
    assert snapshot is not None
    return [
        other
        for other in range(own.world_size)
        if other != rank and not np.array_equal(snapshot.proof(other), pattern(other, rank))
    ]


def try_stream_waits(device: Device, own: ControlBlock, rank: int) -> None:
    """Let the current stream and the side stream wait for a value that is there already.

    Where the driver refuses, kernels wait instead; a line at INFO says so.
    """
    if not device.waits_in_streams:
        return
    try:
        prepared = Prepared(device.driver)
        prepared.wait_value(own.proof(rank), 0, 0)
        for stream in (device.side, device.tensors.current_stream()):
            prepared.enqueue([stream])
    except CudaError as error:
        device.waits_in_streams = False
        _log.info("rank %d: kernels wait for flags, because streams cannot: %s", rank, error)
