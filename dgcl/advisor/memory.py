"""Bytes of each rank by name, before anything runs; of a host for offloading.

Buffers of exchanges are those of a rehearsal of a step (:mod:`dgcl.transport.memory`), with direct plans. A layer's
backward makes two rows of its wider side beside what is kept, for attention three of each edge. Left out: memory that
torch keeps but does not use, Python itself.
"""

from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.counts import Counted
from dgcl.advisor.model import OPTIMIZERS, Model
from dgcl.offload.prediction import DeviceRows, host_bytes
from dgcl.relation.local_graph import local_graph_bytes
from dgcl.transport.memory import pool_bytes, predict_memory

__all__ = ["MOST_CHUNKS", "device_bytes", "host_total", "offload_rows", "totals"]

MOST_CHUNKS = 1024
#: Of an edge, beyond the local graph: for sums, both ways round, with weights; for layers of frameworks. Measured.
_EDGE_BYTES = (50, 28)
_HEAD_BYTES = 12  # of a row that edges of a window lead to, beyond that
_TABLE_BYTES = 24  # of a row that is sent or received: ids, places, and those of the way back


def device_bytes(counted: Counted, model: Model) -> dict[str, NDArray[np.int64]]:
    """Bytes of each rank, (P,) by name."""
    item, strategy = model.itemsize, counted.strategy
    received, sent, partial, _ = counted.travelling
    parameters = np.full(len(counted.owned), model.parameters * item)
    whole = bool(model.kinds & {"gat", "mgn"})
    heads = counted.owned * counted.slices + partial
    graph = local_graph_bytes(heads, received, counted.edges, counted.edge_order)
    if strategy.name == "offload":
        rows = offload_rows(counted, strategy.argument)
        chunk = rows.bytes(model.widths, item, training=model.training).total
        sizes = {"graph": graph, "a chunk's rows and edges": np.full(len(parameters), chunk)}
    else:
        tables, more = _TABLE_BYTES * (received + sent + partial), 0 * counted.edges
        if strategy.name == "windows":  # each has tables of its own
            tables, more = 2 * tables, _HEAD_BYTES * np.minimum(counted.edges, strategy.argument * heads)
        sizes = {"graph": graph + _EDGE_BYTES[whole] * counted.edges + more, "exchange tables": tables}
        sizes["features"] = counted.owned * model.widths[0] * item
        buffers = _whole_rows if whole else _sums
        sizes["exchange buffers"], sizes["sums for other ranks"] = buffers(counted, model)
        sizes["kept, and at work"] = item * _at_work(counted, model)
    sizes["parameters"] = parameters
    if model.training:
        sizes["gradients, optimiser"] = parameters * (1 + OPTIMIZERS[model.optimizer])
    return sizes


def _whole_rows(counted: Counted, model: Model) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Buffers of each rank where layers of whole neighbourhoods keep rows of all that they read."""
    received, sent, *_ = counted.travelling
    dtype: Any = np.dtype(f"V{model.itemsize}")
    widths = [-(-layer.exchanged // counted.slices) for layer in model.layers]
    pools = []
    for owned, halo, arrivals in zip(counted.owned.tolist(), received.tolist(), sent.tolist(), strict=True):
        rows: Any = SimpleNamespace(
            world_size=len(received), num_owned=owned, num_halo=halo, num_local=owned + halo,
            num_arrivals=arrivals, num_relay=0, table_bytes=0,
        )  # fmt: skip
        pools.append(predict_memory([rows], widths, dtype, training=model.training, input_grad=True).pool)
    return np.array(pools), 0 * received


def _sums(counted: Counted, model: Model) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Buffers of each rank where halo rows are given up as soon as they are added; and what it sums for others, in
    memory of its own: partial sums, and gradients of halo rows unless they travel in windows."""
    received, sent, partial, arriving = counted.travelling
    name, windows = astuple(counted.strategy)
    widths = [-(-layer.exchanged // counted.slices) for layer in model.layers]
    back = [width for number, width in enumerate(widths) if model.aggregates_back(number)]
    if name == "in-place":
        back = [layer.out for layer in model.layers] * model.training
    forward, backward = (received, arriving), (partial, sent)
    for_others = np.maximum(max(widths) * partial, max(back, default=0) * received)
    if name == "windows":  # one that was expanded, and another one or what arrives
        forward = backward = (-(-received // windows) + -(-np.maximum(received, sent) // windows), 0 * sent)
        for_others *= 0
    calls = [(width * model.itemsize, forward) for width in widths]
    calls += [(width * model.itemsize, backward) for width in back[::-1]]
    if "gcn" in model.kinds:  # degrees
        items = counted.owned * counted.slices
        of_heads = (items + partial) * (counted.fold is not None)
        calls.insert(0, (8, (items + received, of_heads)))
    pools = [
        pool_bytes(len(received), [[size * int(rows[rank]) for rows in both] for size, both in calls])
        for rank in range(len(received))
    ]
    return np.array(pools), model.itemsize * for_others


def totals(sizes: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """(P,) bytes of each rank."""
    return np.sum(list(sizes.values()), axis=0)


def _at_work(counted: Counted, model: Model) -> NDArray[np.int64]:
    """(P,) elements that autograd keeps at the moment that takes most, and those of the layer that is at work then."""
    if (
        counted.strategy.name == "in-place"
    ):  # hidden rows, one product or aggregate, the result and what a loss makes
        products = (
            layer.out if layer.multiply_first else max(layer.width, layer.out) for layer in model.layers
        )
        return (sum(model.widths[1:-1]) + max(products) + 3 * model.widths[-1]) * counted.owned
    kept, most = np.zeros_like(counted.owned), np.zeros_like(counted.owned)
    for number, layer in enumerate(model.layers):
        back = model.aggregates_back(number)
        work = (2 * max(layer.width, layer.out) if back else layer.out) * counted.owned
        work = work + 3 * layer.out * (layer.kept_of_edge > 0) * counted.edges
        own = layer.kept * counted.owned + layer.kept_of_edge * counted.edges
        kept = kept + own if model.training else own
        most = np.maximum(most, kept + work)
    return most


def offload_rows(counted: Counted, chunks: int) -> DeviceRows:
    """Rows of a rank's device memory with so many chunks, at most: an estimate, as no chunk is cut.

    A chunk reads no more rows than it has edges, beside its own, and than its rank reads.
    """
    owned, edges = (-(-int(each.max(initial=0)) // chunks) for each in (counted.owned, counted.edges))
    received, sent, *_ = counted.travelling
    sources = min(int((counted.owned + received).max(initial=0)), owned + edges)
    travel = min(int(np.maximum(received, sent).max(initial=0)), sources)
    return DeviceRows(sources, sources, sources, owned, travel, edges)


def host_total(counted: Counted, model: Model) -> int:
    """Bytes of host memory of all ranks; 0 where rows stay on devices."""
    if counted.strategy.name != "offload":
        return 0
    return host_bytes(int(counted.owned.sum()), model.widths, model.itemsize, training=model.training).total
