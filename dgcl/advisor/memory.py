"""Bytes of each rank by name, before anything runs; of a host for offloading.

Buffers of exchanges are those of a rehearsal of a step (:mod:`dgcl.transport.memory`), with direct plans. A layer's
backward makes two rows of its wider side beside what is kept, for attention three of each edge. Left out: memory that
torch keeps but does not use, Python itself.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.counts import Counted
from dgcl.advisor.model import OPTIMIZERS, Model
from dgcl.offload.prediction import DeviceRows, host_bytes
from dgcl.relation.local_graph import local_graph_bytes
from dgcl.transport.memory import predict_memory

__all__ = ["MOST_CHUNKS", "device_bytes", "host_total", "offload_rows", "totals"]

MOST_CHUNKS = 1024
#: Of an edge, beyond the local graph: for sums, both ways round, with weights; for layers of frameworks. Measured.
_EDGE_BYTES = (50, 28)
_TABLE_BYTES = 24  # of a row that is sent or received: ids, places, and those of the way back


def device_bytes(counted: Counted, model: Model) -> dict[str, NDArray[np.int64]]:
    """Bytes of each rank, (P,) by name."""
    item, strategy = model.itemsize, counted.strategy
    received, sent, partial = counted.received, counted.sent, counted.partial
    heads = counted.owned * counted.slices + partial
    parameters = np.full(len(counted.owned), model.parameters * item)
    whole = bool(model.kinds & {"gat", "mgn"})
    graph = local_graph_bytes(heads, received, counted.edges, counted.edge_order)
    if strategy.name == "offload":
        rows = offload_rows(counted, strategy.argument)
        chunk = rows.bytes(model.widths, item, training=model.training).total
        sizes = {"graph": graph, "a chunk's rows and edges": np.full(len(parameters), chunk)}
    else:
        sizes = {
            "graph": graph + _EDGE_BYTES[whole] * counted.edges,
            "exchange tables": _TABLE_BYTES * (received + sent + partial),
        }
        sizes["features"] = counted.owned * model.widths[0] * item
        sizes["exchange buffers"] = np.array(
            [_pool(counted, model, rank, whole) for rank in range(len(counted.owned))]
        )
        sizes["kept, and at work"] = item * _at_work(counted, model)
    sizes["parameters"] = parameters
    if model.training:
        sizes["gradients, optimiser"] = parameters * (1 + OPTIMIZERS[model.optimizer])
    return sizes


def _rows(counted: Counted, owned: int, halo: int, arrivals: int) -> Any:
    """A rank's rows in an exchange, as a program has them."""
    return SimpleNamespace(
        world_size=len(counted.owned), num_owned=owned, num_halo=halo, num_local=owned + halo,
        num_arrivals=arrivals, num_relay=0, table_bytes=0,
    )  # fmt: skip


def _pool(counted: Counted, model: Model, rank: int, whole: bool) -> int:
    """Bytes of a rank's buffers, by a rehearsal of the calls of a step.

    Layers of whole neighbourhoods keep rows of all that they read; sums give halo rows up as soon as they are added.
    """
    all_ranks = (counted.owned, counted.received, counted.sent, counted.partial)
    owned, received, sent, partial = (int(each[rank]) for each in all_ranks)
    dtype: Any = np.dtype(f"V{model.itemsize}")
    widths = [-(-layer.exchanged // counted.slices) for layer in model.layers]
    if whole:
        rows = _rows(counted, owned, received, sent)
        return predict_memory([rows], widths, dtype, training=model.training, input_grad=True).pool
    name, windows = counted.strategy.name, counted.strategy.argument
    if name == "windows":  # two at a time
        received, sent, partial = (
            -(-rows // windows) * min(windows, 2) for rows in (received, sent, partial)
        )
    programs = [_rows(counted, 0, rows, 0) for rows in (received, sent, partial)]
    back = [(layer.out, 1) for layer in reversed(model.layers)]
    if name != "in-place":
        back = [(widths[number], 1) for number in range(len(widths))[::-1] if model.aggregates_back(number)]
    degrees = [(1, 0)] * ("gcn" in model.kinds)
    calls = [*degrees, *((width, kind) for kind in (0, 2) for width in widths), *back * model.training]
    return predict_memory(programs, calls, dtype, training=False).pool


def totals(sizes: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """(P,) bytes of each rank."""
    return np.sum(list(sizes.values()), axis=0)


def _at_work(counted: Counted, model: Model) -> NDArray[np.int64]:
    """(P,) elements that autograd keeps at the moment that takes most, and those of the layer that is at work then."""
    if counted.strategy.name == "in-place":  # rows of each layer, products, and what a loss makes
        pairs = [(layer.width, layer.out) for layer in model.layers]
        return (sum(map(max, pairs)) + max(map(min, pairs)) + 3 * model.widths[-1]) * counted.owned
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
    local = int((counted.owned + counted.received).max(initial=0))
    sources = min(local, owned + edges)
    travel = min(int(np.maximum(counted.received, counted.sent).max(initial=0)), sources)
    return DeviceRows(sources, sources, sources, owned, travel, edges)


def host_total(counted: Counted, model: Model) -> int:
    """Bytes of host memory of all ranks; 0 where rows stay on devices."""
    if counted.strategy.name != "offload":
        return 0
    return host_bytes(int(counted.owned.sum()), model.widths, model.itemsize, training=model.training).total
