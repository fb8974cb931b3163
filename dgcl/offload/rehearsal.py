"""Measures the bytes that each layer makes inside itself, by running it on chunks of zeros before training.

Forward and backward, on the chunks with most edges, most rows read and most vertices. A layer is not run there if a
small part of a chunk shows that it needs over twice the limit. Buffers, hooks and random numbers stay as they were.
Called by `offload`. Free to change while a limit gets as many chunks as wasteful layers need, and layers that were
measured are as they were before (`tests/dgcl/offload/test_offload.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.frameworks import local_graph
from dgcl.nn.vertex_dropout import rows_of_call
from dgcl.offload.allocations import Allocations
from dgcl.offload.chunk_graphs import ChunkRows
from dgcl.offload.chunks import cut_chunk
from dgcl.offload.recompute import RandomNumbers, without_hooks
from dgcl.offload.refusals import learned_by
from dgcl.offload.residency import Ids
from dgcl.ranks.torch_private import tree_iter
from dgcl.relation.local_graph import LocalGraph


def measured(
    comm: Communicator,
    layers: Sequence[Callable[..., Any] | None],
    widths: Sequence[int],
    dtype: torch.dtype,
    kind: str,
    ranks_are_threads: bool,
    chunks: Sequence[Ids],
    limit: int | None,
) -> list[int]:
    """Bytes of each layer, run forward and backward, the most of the fullest chunks; 0: not measured.

    Where a part of the fullest chunk shows that it would take more than twice the limit, it is not run.

    Args:
        comm: The communicator.
        layers: A module for each pair of widths; None where a layer is not measured.
        widths: Of the input and of each layer's result.
        dtype, kind: Of rows; of graphs.
        ranks_are_threads: They share a generator.
        chunks: Rows of each chunk.
        limit: Bytes.
    """

    def taken(number: int, layer: Any, chunk: LocalGraph) -> int:
        learned = learned_by(layer, None)
        buffers = [
            (part, *each)
            for part in layer.modules()
            for each in part.named_buffers(recurse=False, remove_duplicate=False)
        ]
        width, counted = widths[number], Allocations(None, comm.device)
        rows = rows_of_call(ChunkRows(comm.rank, chunk, [], lambda: 0))
        numbers = RandomNumbers(ranks_are_threads, comm.device).again(0)
        try:
            for part, name, buffer in buffers:
                setattr(part, name, buffer.clone())
            with counted, torch.enable_grad(), numbers, rows, without_hooks(learned):
                graph = local_graph(kind, chunk).to(comm.device)
                src = torch.zeros(chunk.num_local, width, dtype=dtype, device=comm.device)
                out = tree_iter(layer(graph, src.requires_grad_(number > 0), src[: chunk.num_owned]))
                leaves = [each for each in (src, *learned) if each.requires_grad]
                outs = [each for each in out if isinstance(each, Tensor) and each.requires_grad]
                if leaves and outs:
                    torch.autograd.grad(outs, leaves, [*map(torch.zeros_like, outs)], allow_unused=True)
        except Exception as error:
            raise ValueError(
                f"layers[{number}] fails on rows of zeros of {dtype}, {width} wide: {error}. Ways"
                " out: (1) other widths, or dtype, (2) None in its place, then it is not measured"
            ) from error
        finally:
            for each in buffers:
                setattr(*each)
        return counted.peak

    cut = [cut_chunk(comm.local, rows) for rows in chunks if len(rows)]
    if not cut:
        return []
    # by edges, by what they read, by vertices: what a layer makes may depend on any of these
    ways = (lambda each: each.size[1], lambda each: len(each.reads), lambda each: each.size[0])
    fullest, *others = (max(cut, key=way) for way in ways)
    part = cut_chunk(comm.local, fullest.rows[: 1 + len(fullest.rows) // max(10, 256 // len(cut))])
    times = fullest.size[1] / max(1, part.size[1])
    result = []
    for number, layer in enumerate(layers):
        most = 0
        if layer is not None and limit is not None:
            most = int(taken(number, layer, part.local) * times)
        if layer is not None and (limit is None or most <= 2 * limit):
            tried = dict.fromkeys((fullest, *others))
            most = max(taken(number, layer, chunk.local) for chunk in tried)
        result.append(most)
    return result
