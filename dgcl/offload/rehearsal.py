"""Measures what layers make inside themselves, by running each on one chunk of zeros before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Runs layers forward and backward on a chunk, and counts their bytes.

    Attributes:
        layers: A module for each pair of widths; None where a layer is not measured.
        widths: Of the input and of each layer's result.
        dtype, kind, device: Of rows; of graphs; where layers run.
        rank: This rank.
        ranks_are_threads: They share a generator.
    """

    layers: Sequence[Callable[..., Any] | None]
    widths: Sequence[int]
    dtype: torch.dtype
    kind: str
    device: torch.device
    rank: int
    ranks_are_threads: bool

    def measured(self, local: LocalGraph, chunks: Sequence[Ids], limit: int | None) -> list[int]:
        """Bytes of each layer, the most of the fullest chunks; 0: not measured.

        Where a part of the fullest chunk shows that it would take more than twice the limit, it is not run.

        Args:
            local: The rank's edges.
            chunks: Rows of each chunk.
            limit: Bytes.
        """
        cut = [cut_chunk(local, rows) for rows in chunks if len(rows)]
        if not cut:
            return []
        # by edges, by what they read, by vertices: what a layer makes may depend on any of these
        ways = (lambda each: each.size[1], lambda each: len(each.reads), lambda each: each.size[0])
        fullest, *others = (max(cut, key=way) for way in ways)
        part = cut_chunk(local, fullest.rows[: 1 + len(fullest.rows) // max(10, 256 // len(cut))])
        times = fullest.size[1] / max(1, part.size[1])
        result = []
        for number, layer in enumerate(self.layers):
            most = 0
            if layer is not None and limit is not None:
                most = int(self._bytes(number, layer, part.local) * times)
            if layer is not None and (limit is None or most <= 2 * limit):
                tried = dict.fromkeys((fullest, *others))
                most = max(self._bytes(number, layer, chunk.local) for chunk in tried)
            result.append(most)
        return result

    def _bytes(self, number: int, layer: Any, chunk: LocalGraph) -> int:
        learned = learned_by(layer, None)
        buffers = [
            (part, *each)
            for part in layer.modules()
            for each in part.named_buffers(recurse=False, remove_duplicate=False)
        ]
        width, counted = self.widths[number], Allocations(None, self.device)
        rows = rows_of_call(ChunkRows(self.rank, chunk, [], lambda: 0))
        numbers = RandomNumbers(self.ranks_are_threads, self.device).again(0)
        try:
            for part, name, buffer in buffers:
                setattr(part, name, buffer.clone())
            with counted, torch.enable_grad(), numbers, rows, without_hooks(learned):
                graph = local_graph(self.kind, chunk).to(self.device)
                src = torch.zeros(chunk.num_local, width, dtype=self.dtype, device=self.device)
                out = tree_iter(layer(graph, src.requires_grad_(number > 0), src[: chunk.num_owned]))
                leaves = [each for each in (src, *learned) if each.requires_grad]
                outs = [each for each in out if isinstance(each, Tensor) and each.requires_grad]
                if leaves and outs:
                    torch.autograd.grad(outs, leaves, [*map(torch.zeros_like, outs)], allow_unused=True)
        except Exception as error:
            raise ValueError(
                f"layers[{number}] fails on rows of zeros of {self.dtype}, {width} wide: {error}. Ways"
                " out: (1) other widths, or dtype, (2) None in its place, then it is not measured"
            ) from error
        finally:
            for each in buffers:
                setattr(*each)
        return counted.peak
