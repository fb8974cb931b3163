"""Layers on one rank of several hosts, with or without replicas: what was predicted, and the seconds they took."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import dgcl
from dgcl.advisor.rates import measure_rates
from dgcl.graph import as_graph
from dgcl.replication.counts import Holdings

NUM_VERTICES = 8000
WIDTH, LAYERS, STEPS = 128, 2, 3


def layers_on_rank(edges: np.ndarray, topology: dgcl.Topology, hops: int | None) -> dict[str, Any]:
    """Seconds of a layer, predicted and measured, and whether rows are replicated."""
    graph = as_graph(edges, num_nodes=NUM_VERTICES)
    comm = dgcl.build_comm_info(
        graph,
        topology,
        plan=dgcl.PlanOptions(row_bytes=4 * WIDTH),
        strategy="halo" if hops is None else f"replicas:{hops}",
        timeout=120.0,
    )
    rates = measure_rates()
    counts = comm.control.exchange((comm.num_owned, comm.num_halo, comm.local.num_edges))
    held = Holdings(*(np.array(column) for column in zip(*counts, strict=True)))
    local = comm.local_graph("csr")
    weights = [torch.eye(WIDTH).requires_grad_() for _ in range(LAYERS)]
    x = dgcl.dispatch_features(torch.ones(NUM_VERTICES, WIDTH)).requires_grad_()
    begin = 0.0
    for step in range(STEPS + 1):  # the first makes buffers
        if step == 1:
            comm.control.barrier()
            begin = time.perf_counter()
        h = x
        for weight in weights:
            h = local.mean(dgcl.graph_allgather(h @ weight))
        h[: comm.num_core].sum().backward()
    comm.control.barrier()
    measured = (time.perf_counter() - begin) / STEPS / LAYERS
    found = {
        "exchange": 2 * comm.plan.predicted_seconds,
        "work": float(
            (
                2 * held.edges * (rates.edge + 4 * WIDTH / rates.memory)
                + 3 * held.owned * WIDTH**2 / rates.products
            ).max()
        ),
        "measured": measured,
        "replicated": "replication" in comm.plan.meta,
        "copies": sum(count[0] for count in counts) / NUM_VERTICES,
    }
    comm.close()
    return found
