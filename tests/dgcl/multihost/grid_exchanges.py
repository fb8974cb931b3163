"""Both exchanges of an aggregation on a rank, timed: what ``grid_figures`` runs."""

import time
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.aggregation.aggregator import number_of
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.topology import Topology

NUM_VERTICES, NUM_EDGES, WIDTH = 4_000, 400_000, 128
CALLS = 5


def exchanges_on_rank(topology: Topology, options: dict[str, Any]) -> dict[str, float]:
    """Bytes that a rank sends in both exchanges of an aggregation, and seconds."""
    rng = np.random.default_rng(7)
    edges, part = (
        rng.integers(0, NUM_VERTICES, (2, NUM_EDGES)),
        rng.integers(0, topology.num_devices, NUM_VERTICES),
    )
    comm = dgcl.build_comm_info(torch.from_numpy(edges), topology, part=part, **options)
    halo, fold = number_of(comm, HALO), number_of(comm, PARTIAL)
    items = comm.to_items(torch.ones(comm.num_owned, WIDTH))
    into = torch.zeros_like(items)
    sums = None if fold is None else torch.ones(comm.layouts[PARTIAL].num_halo, items.shape[1])
    taken = []
    for _ in range(CALLS + 1):
        comm.control.barrier()
        before, begin = comm.transport.bytes_sent.sum(), time.perf_counter()
        if halo is not None:
            comm.transport.begin_expand(items, halo, wait=True).wait()
        if sums is not None and fold is not None:
            comm.transport.begin_fold(sums, fold, wait=True).wait(into)
        comm.control.barrier()
        taken.append(time.perf_counter() - begin)
    return {
        "bytes": float(comm.transport.bytes_sent.sum() - before),
        "predicted": sum(
            each.plan.predicted_seconds for each in comm.exchanges.values() if each.name in (HALO, PARTIAL)
        ),
        "measured": float(np.median(taken[1:])),
    }
