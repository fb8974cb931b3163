"""Predicts the bytes of device memory of each rank, by what they are for, and of host memory of offloaded rows.

Buffers of exchanges have the size that a pool reaches in the calls of a step (:mod:`dgcl.transport.buffer_memory`),
every row sent straight from its owner. A layer's backward makes two rows of its wider side beside what is kept, and
three of each edge for edge networks, scores for attention. Left out: memory that torch keeps but does not use, except
in chunks; Python itself.
Called by `advice` and `weighing`. Free to change while memory predicted for sums is what a communicator holds for them
after real steps, a chunk of offload has room for all that its largest vertex reads, and ``advise`` chooses nothing that
is predicted above the limit (`tests/dgcl/advisor/test_choice.py`).
"""

from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.counts import Counted
from dgcl.advisor.layers import ATTENTION, WHOLE
from dgcl.advisor.model_costs import OPTIMIZERS, Model
from dgcl.aggregation.results import ResultMemory
from dgcl.offload.offload_prediction import DeviceRows, host_bytes
from dgcl.relation.local_graph import local_graph_bytes
from dgcl.transport.buffer_memory import pool_bytes

_WEIGHTED = {"gcn", "sage"}
#: Of an edge beyond the local graph: its head, both ends and its place in a block, and sorted the other way round; of
#: layers of frameworks both ends, and as the adjoint has them. Weights are kept as they are, and sorted both ways.
_EDGE_BYTES, _WEIGHT_BYTES = 28, 16
_HEAD_BYTES = 12  # of a row that edges of a block lead to
_LOOPED_BYTES = 16  # more of an edge of attention, whose edges are kept with self loops, too. Measured
_CUT_BYTES = 44  # of an edge of a chunk, as it is cut and sorted the other way round
_SORTED_BYTES = 64  # and where a framework sorts it, too
_FREE = 1_000_000  # in small blocks that are free between others, of a rank in chunks. Measured
_TABLE_BYTES = 24  # of a row that is sent or received: ids, places, and those of the way back


def device_bytes(counted: Counted, model: Model) -> dict[str, NDArray[np.int64]]:
    """Bytes of each rank, (P,) by name."""
    item, strategy = model.itemsize, counted.strategy
    received, sent, partial, _ = counted.travelling
    parameters = np.full(len(counted.owned), model.parameters * item)
    heads = counted.owned * counted.slices + partial
    graph = local_graph_bytes(heads, received, counted.edges, counted.edge_order)
    if strategy.name == "offload":
        rows = counted.chunks
        width, layers = item * max(model.widths[:-1]), range(len(model.layers))
        tables = np.array([each.tables for each in rows])
        free = 0 * tables + _FREE
        free[0] += tables[1:].sum() // 2  # of all that were made there; measured
        chunks = [max(_chunk_bytes(each, model, number) for number in layers) for each in rows]
        sizes = {
            "graph": graph + item * ("gcn" in model.kinds) * counted.edges,  # weights
            "a chunk's rows and edges": np.array(chunks),
            "exchange buffers": np.array([pool_bytes([[each.travelling * width]]) for each in rows]),
            "exchange tables": tables + _TABLE_BYTES * (received + sent),
            "free between": free,
        }
    else:
        windows = strategy.windows or 0  # each has tables of its own
        graph += _HEAD_BYTES * np.minimum(counted.edges, (2 + max(windows, 1)) * heads)
        more = _LOOPED_BYTES * bool(model.kinds & ATTENTION) + _WEIGHT_BYTES * bool(model.kinds & _WEIGHTED)
        graph += (_EDGE_BYTES + more) * counted.edges
        tables = _TABLE_BYTES * (received + sent + partial) * (1 + (windows > 0))
        buffers, sums = _buffers(counted, model)
        sizes = {
            "graph": graph,
            "exchange tables": tables,
            "features": counted.owned * model.widths[0] * item,
            "exchange buffers": buffers,
            "kept, and at work": _at_work(counted, model, sums),
        }
    sizes["parameters"] = parameters
    sizes["gradients, optimiser"] = parameters * model.training * (1 + OPTIMIZERS[model.optimizer])
    return sizes


def _chunk_bytes(rows: DeviceRows, model: Model, number: int) -> int:
    """Bytes of a chunk of a layer: sums are made of rows in slots, whole neighbourhoods are copied from there."""
    layer, item = model.layers[number], model.itemsize
    whole, both = layer.kind in WHOLE, 1 + (model.training and number > 0)  # inputs need no gradients
    read = layer.width * (rows.sources if whole else rows.outputs * (2 - (layer.kind == "gcn")))
    kept = layer.kept_of_edge + (layer.kind in ATTENTION) * (
        layer.out + 4
    )  # PyG's layer: messages, ends in int64
    of_edge = item * kept + _CUT_BYTES
    of_edge += whole * (3 * item * model.training * layer.out + _SORTED_BYTES)
    gradients = read * (both - 1) + rows.outputs * layer.out * (1 + model.training)
    work = max(item * gradients + of_edge * rows.edges, item * rows.arrivals * layer.width)
    return item * (rows.slots * layer.width * both + read) + work


def _buffers(counted: Counted, model: Model) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes of each rank's pool of buffers, and (2L, P) those of its pool of sums as each layer's forward has summed,
    then the backward of the last, and so on: of a rehearsal of a step. Sums for other ranks are partial sums, and
    gradients of halo rows unless they travel in windows.

    Sums give halo rows up as soon as they are added, layers of whole neighbourhoods when messages are made of them.
    """
    received, sent, partial, arriving = counted.travelling
    owned, (name, windows) = counted.owned * counted.slices, astuple(counted.strategy)
    widths = [model.itemsize * -(-layer.exchanged // counted.slices) for layer in model.layers]
    back = [width * model.aggregates_back(number) for number, width in enumerate(widths)]
    if name == "in-place":
        back = [model.itemsize * layer.out * model.training for layer in model.layers]
    results, for_others = owned * (name != "in-place"), received
    forward, backward = [received, arriving], [partial, sent]
    if model.kinds & WHOLE:
        forward, backward, results, for_others = [owned + received], [owned, sent], 0 * sent, 0 * sent
    elif name == "windows":  # one that was expanded, and another one or what arrives
        room = -(-received // windows) + -(-np.maximum(received, sent) // windows)
        forward, backward, for_others = [room], [room], 0 * sent
    apart = [model.itemsize * layer.attention for layer in model.layers]
    halves = (widths, apart, forward), (back[::-1], apart[::-1], backward)
    calls, back_calls = (
        [
            each * np.array(moved)
            for width, alone in zip(wide, first, strict=True)
            for each in (alone, width - alone)
            if width
        ]
        for wide, first, moved in halves
    )
    if (
        model.kinds & ATTENTION and model.training
    ):  # rows that scores and weights are made of stay for the backward
        calls = [np.concatenate(calls)]
    calls += back_calls
    if "gcn" in model.kinds:  # degrees
        calls.insert(0, 8 * np.array([owned + received, (owned + partial) * (counted.fold is not None)]))
    pools = [pool_bytes(call[:, rank].tolist() for call in calls) for rank in range(len(owned))]
    ways = (widths, [results, partial]), (back[::-1], [results, for_others])
    sums = [width * np.array(summed) for wide, summed in ways for width in wide]
    held = np.zeros((len(sums), len(owned)), np.int64)
    for rank in range(len(owned)):
        memory, kept = ResultMemory(), dict[int, list[np.ndarray]]()
        for number, call in [*enumerate(sums)] * 2:  # what the second step begins with is there in all
            memory.returned += kept.pop(number, [])
            pieces = [np.broadcast_to(np.uint8(0), size) for size in call[::-1, rank]]  # results die last
            for piece in pieces:
                memory.take(piece.nbytes)
            held[number, rank] = memory.num_bytes
            if model.training and number < len(widths) and model.layers[number].keeps_sum:
                kept[len(sums) + ~number] = [pieces.pop()]
            memory.returned += pieces
    return np.array(pools), held


def _at_work(counted: Counted, model: Model, sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """(P,) bytes that autograd keeps at the moment that takes most, and those of the layer that is at work then."""
    item, owned = model.itemsize, counted.owned
    if counted.strategy.name == "in-place":  # hidden rows, a product, and the result with what a loss makes
        outs = model.widths[1:]
        return item * (sum(outs) + max(outs) + 2 * outs[-1]) * owned + sums.max(0)
    kept, most = 0 * owned, 0 * owned
    for number, layer in enumerate(model.layers):
        edges = counted.edges + counted.owned  # attention adds self loops
        of_row = layer.kept - layer.keeps_sum * layer.width  # a sum that is kept is among sums
        own = item * (of_row * owned + layer.kept_of_edge * edges)
        # on the way forward also what it takes, not yet activated; of the last, gradients of the loss
        least = max(layer.width * (number > 0), layer.out * (layer is model.layers[-1]))
        most = np.maximum(most, kept + own + item * (layer.out + least) * owned + sums[number])
        if model.training:  # gradients of what it took, before and after the activation; of edges' rows
            work = 2 * (layer.width if number else layer.out) * owned
            of_edge = 2 * layer.heads if layer.kind in ATTENTION else 3 * layer.out
            of_edges = own + item * of_edge * edges if layer.kind in WHOLE else 0
            most = np.maximum(most, kept + item * work + of_edges + sums[~number])
        kept = own + kept * model.training
    return most


def host_total(counted: Counted, model: Model) -> int:
    """Bytes of host memory of all ranks; 0 where rows stay on devices."""
    if counted.strategy.name != "offload":
        return 0
    return host_bytes(int(counted.owned.sum()), model.widths, model.itemsize, training=model.training).total
