"""A graph in chunks without ranks: what :class:`dgcl.Offload` would do, for all ranks in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.offload.chunks import MOST_CHUNKS, chunk_rows, cut_chunk
from dgcl.offload.prediction import DeviceBytes, device_bytes, smallest_fitting
from dgcl.offload.schedule import Schedule, reorganise, volumes
from dgcl.relation.demand import halo_demand
from dgcl.relation.local_graph import LocalGraph, build_local_graphs

__all__ = ["Arranged", "OfflineRanks"]


@dataclass(frozen=True, eq=False)
class Arranged:
    """A number of chunks, arranged.

    Attributes:
        schedule: In the order in which batches are computed.
        sizes: Of each rank and batch the chunk's (vertices, in-edges).
        volumes: (V_ori, V_p2p, V_ru) in that order.
        reordered: Whether chunks were taken in another order than they were made in.
    """

    schedule: Schedule
    sizes: Sequence[Sequence[tuple[int, int]]]
    volumes: tuple[int, int, int]
    reordered: bool


class OfflineRanks:
    """The ranks of a job that does not run.

    Args:
        graph: The whole graph.
        part: (N,) the owner of each vertex.
        num_ranks: How many there are.
        chunk_by, slots, seed: As in :class:`dgcl.Offload`.
    """

    def __init__(
        self,
        graph: Graph,
        part: NDArray[np.int32],
        num_ranks: int,
        *,
        chunk_by: str = "metis",
        slots: int | None = None,
        seed: int = 0,
    ) -> None:
        demand = halo_demand(graph, part, num_ranks)
        rows = [(np.flatnonzero(part == rank), demand.wanted_by(rank)) for rank in range(num_ranks)]
        self.locals: list[LocalGraph] = list(build_local_graphs(graph, rows))
        self.part = part.astype(np.int32)
        self._chunk_by, self._slots, self._seed = chunk_by, slots, seed

    def arrange(self, num_chunks: int) -> Arranged:
        """Cut every rank's vertices into chunks, and order them."""
        chunks = [
            [cut_chunk(local, rows) for rows in chunk_rows(local, num_chunks, self._chunk_by, self._seed)]
            for local in self.locals
        ]
        reads = [[chunk.reads for chunk in of_rank] for of_rank in chunks]
        order, schedule = reorganise(reads, self.part, self._slots)
        sizes = [[of_rank[k].size for k in perm] for of_rank, perm in zip(chunks, order, strict=True)]
        reordered = any((perm != np.arange(num_chunks)).any() for perm in order)
        return Arranged(schedule, sizes, volumes(schedule.reads), reordered)

    def device_bytes(self, arranged: Arranged, widths: Sequence[int], itemsize: int = 4) -> DeviceBytes:
        """Bytes of device memory of the rank that takes most."""
        return max(
            device_bytes(arranged.schedule, arranged.sizes, widths, itemsize), key=lambda each: each.total
        )

    def smallest(self, limit: int, widths: Sequence[int], itemsize: int = 4) -> tuple[int, int]:
        """The smallest number of chunks that fits into ``limit`` bytes of device memory, and its peak.

        Returns:
            (0, the least peak that was seen) where not even chunks of one vertex fit.
        """
        most = min(MOST_CHUNKS, max(1, *(local.num_owned for local in self.locals)))
        return smallest_fitting(
            lambda n: self.device_bytes(self.arrange(n), widths, itemsize).total, limit, most
        )
