"""Bytes of each rank by name, before anything runs; of a host for offloading.

Buffers of exchanges are those of the calls of a step, one at a time: halo rows as they arrive in the forward, their
gradients as they are sent and arrive in the backward. Left out: temporary results that autograd gives up within a
layer, memory that torch keeps but does not use, the framework's own graph objects, the loss, Python itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.counts import Counted
from dgcl.advisor.model import OPTIMIZERS, Model
from dgcl.offload.prediction import DeviceRows, host_bytes
from dgcl.relation.local_graph import local_graph_bytes

__all__ = ["MOST_CHUNKS", "device_bytes", "host_total", "offload_rows", "totals"]

MOST_CHUNKS = 1024
_TABLE_BYTES = 24  # of a row that is sent or received: ids, places, and those of the way back


def device_bytes(counted: Counted, model: Model) -> dict[str, NDArray[np.int64]]:
    """Bytes of each rank, (P,) by name."""
    item, name, slices = model.itemsize, counted.strategy.name, counted.slices
    exchanged = max(-(-layer.exchanged // slices) for layer in model.layers) * item
    received, sent, partial = counted.received, counted.sent, counted.partial
    arriving = np.maximum(received, sent) if model.training else received
    heads = counted.owned * slices + partial
    parameters = np.full(len(counted.owned), model.parameters * item)
    sizes = {
        "graph": local_graph_bytes(heads, received, counted.edges, counted.edge_order) + 8 * counted.edges,
        "exchange tables": _TABLE_BYTES * (received + sent + partial),
    }
    if name == "offload":
        assert isinstance(counted.strategy.argument, int)
        rows = offload_rows(counted, counted.strategy.argument)
        chunk = rows.bytes(model.widths, item, training=model.training).total
        sizes = {"graph": sizes["graph"], "a chunk's rows and edges": np.full(len(parameters), chunk)}
    else:
        windows = counted.strategy.argument if name == "windows" else 1
        assert isinstance(windows, int)
        sizes["features"] = counted.owned * model.widths[0] * item
        returning = received if model.training else 0
        sizes["exchange buffers"] = (arriving + partial + returning) * exchanged // windows * min(windows, 2)
        sizes["kept for the backward" if model.training else "results"] = item * _kept(counted, model)
    sizes["parameters"] = parameters
    if model.training:
        sizes["gradients, optimiser"] = parameters * (1 + OPTIMIZERS[model.optimizer])
    return sizes


def totals(sizes: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """(P,) bytes of each rank."""
    return np.sum(list(sizes.values()), axis=0)


def _kept(counted: Counted, model: Model) -> NDArray[np.int64]:
    """(P,) elements that autograd keeps of all layers, or of the widest layer's results."""
    each = [layer.kept * counted.owned + layer.kept_of_edge * counted.edges for layer in model.layers]
    if counted.strategy.name == "in-place":  # one tensor of each layer's rows, and one of products
        widest = max(layer.exchanged for layer in model.layers)
        return (sum(model.widths[1:]) + widest) * counted.owned
    return np.sum(each, axis=0) if model.training else np.max(each, axis=0)


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
