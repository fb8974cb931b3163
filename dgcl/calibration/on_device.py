"""Times exchanges between GPUs for calibration, on the devices' streams, with the same programs.

A call lasts as long as on the slowest rank, by events around a few calls in a row after one that brings the ranks into
step. An expand on a device also copies the rank's own rows to their place, which the cost model leaves out; that copy
is timed alone and taken off. Rows that fit into a device's cache are found there by the next call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from dgcl.bench.flags import Flags
from dgcl.bench.on_device.clock import Clock
from dgcl.program import Program
from dgcl.program.exchange import HALO
from dgcl.ranks.control import Control
from dgcl.ranks.machines import find_topology, places_of_ranks
from dgcl.topology import Topology, resolve_topology
from dgcl.transport.cuda.exchange import DeviceExchange

if TYPE_CHECKING:
    from dgcl.calibration.effort import Effort
    from dgcl.transport.cuda.gpu import Device

_IN_A_ROW = 4


def time_on_device(
    program: Program,
    control: Control,
    flags: Flags,
    row_bytes: int,
    effort: Effort,
    device: Device,
    timeout: float,
) -> float:
    """Seconds of one expand, on every rank the same. Collective.

    Args:
        program, control, flags: Of the rank.
        row_bytes: Bytes of a row.
        effort: How long to measure.
        device: The rank's.
        timeout: Seconds without progress after which a call has failed.
    """
    exchange = DeviceExchange({HALO: program}, control, timeout, device)
    clock = Clock(device.tensors.device, exchange.synchronize)
    rows = torch.ones(program.num_owned, row_bytes, dtype=torch.uint8, device=device.tensors.device)
    copied = torch.empty_like(rows)

    def calls() -> None:
        for _ in range(_IN_A_ROW):
            exchange.expand(rows)

    def sample() -> float:
        flags.barrier()
        exchange.expand(rows)
        return clock.seconds(calls) / _IN_A_ROW

    try:
        sample()
        start = time.perf_counter()
        sample()
        lasted = max(control.exchange(time.perf_counter() - start))
        count = int(np.clip(effort.seconds / max(lasted, 1e-6), effort.least // _IN_A_ROW, effort.most))
        samples = [sample() for _ in range(max(count, 1))]
        own = min(clock.seconds(lambda: copied.copy_(rows)) for _ in range(3))
        every = np.array(control.exchange([max(seconds - own, 1e-9) for seconds in samples]))
    finally:
        exchange.close()
    fastest = np.sort(every.max(axis=0))[: max(1, every.shape[1] // 10)]
    return float(fastest.mean())


def device_structure(control: Control, device: Device) -> Topology | None:
    """Return the connections between the ranks' GPUs, on rank 0. Collective.

    They are detected, or all equal if the ranks share one GPU."""
    places = places_of_ranks(control, device.name)
    names = [place.gpu for place in places]
    if len(set(names)) < len(names):
        return resolve_topology(f"uniform:{control.world_size}", control.world_size)
    return find_topology(control, places).topology
