"""Predicts the bytes of host and device memory that offload takes, and finds the fewest chunks that fit.

Uses numpy alone, so that predictions need no torch. Formulas and symbols (d_l, slots, copies) are below the imports.
Called by `arranging`, `offload`, `description`, `dgcl/advisor/rank_bytes`, `dgcl/advisor/weighing` and others. Free to
change while host bytes are exact by name (`tests/dgcl/offload/test_offload.py`), device bytes right within 10 % and 2.5
MB (`tests/dgcl/offload/test_limit.py`), and the smallest number of chunks is found
(`tests/dgcl/offload/test_counts.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dgcl.offload.schedule import Schedule

#: Bytes of an edge of the chunk at hand: as it is cut, and both ways round for a layer.
EDGE_BYTES = 36
#: Bytes of an edge whose chunk's graph is kept: as it is cut, both ways round, and as layers get it.
GRAPH_BYTES = 72

#: Bytes in tables of a residency of a row of its own, as it is loaded and returned, and of a row that travels.
OWN_BYTES, MOVED_BYTES = 50, 30

#: Bytes that a process takes in small blocks while layers run, fitted to what was seen: 0.4 to 1.3 MB; on rank 0, which
#: compiles the tables of all, 0.6 to 3.6 MB, growing with the chunks.
SMALL_BYTES, SMALL_OF_CHUNK = 1_000_000, 50_000


# Widths are elements of a row: d_0 of the inputs, d_1 to d_L of what the L layers give. Bytes of a layer that is
# computed in chunks, with rows of w = d_l and of w' = d_{l+1} elements::
#
#     loads       rows of its own that a rank loads, or returns gradients of, in one batch, w each
#     slots       num_slots w, twice in the backward: rows and their gradients
#     sources     rows of the chunk that reads most, w each, twice in the backward
#     outputs     rows of the largest chunk, w' each, twice in the backward
#     arrivals    rows that come from, or go to, other ranks in one batch, w each: copies that leave are gone
#                 before a layer has sources and outputs
#     copies      while rows travel, before and after the layer: those received and, once each, those sent; in place of
#                 sources and outputs where they are more
#     edges       of the chunk that has most
#     small       blocks of Python and of the allocator
#
# What a layer makes inside itself (a row for each edge, say) depends on the layer. It is measured on a chunk
# (:mod:`dgcl.offload.rehearsal`) or counted when the layer is computed (:mod:`dgcl.offload.allocations`), in
# place of sources and outputs.


class _Sizes:
    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class DeviceBytes(_Sizes):
    """Bytes of a rank's device memory, by name, while one layer is computed or differentiated.

    Attributes:
        inside: In place of loads, sources and outputs, once layers were measured: all that they took beside slots. And
            what copies of rows that travel take beyond these.
        small: Of Python and of the allocator.
    """

    loads: int
    slots: int
    sources: int
    outputs: int
    arrivals: int
    edges: int
    inside: int = field(default=0, kw_only=True)
    small: int = field(default=SMALL_BYTES, kw_only=True)


@dataclass(frozen=True)
class DeviceRows(DeviceBytes):
    """Rows of one rank from which widths make bytes, by the same names, and the edges of its fullest chunk.

    Attributes:
        travelling: The most rows that one call receives, or sends.
        copies: The most that one call copies: those received and, once each, those sent.
        tables: Bytes of its tables.
    """

    travelling: int = 0
    copies: int = 0
    tables: int = 0

    def bytes(
        self, widths: Sequence[int], itemsize: int = 4, *, training: bool = True, inside: Sequence[int] = ()
    ) -> DeviceBytes:
        """Bytes of device memory in the layer that takes most.

        Args:
            widths: d_0 to d_L.
            itemsize: Bytes of an element.
            training: With a backward.
            inside: Bytes that each layer makes inside itself in training; 0: not measured.
        """
        per_layer = []
        for number, (width, out) in enumerate(pairwise(widths)):
            row, both = width * itemsize, 1 + (training and number > 0)  # inputs need no gradients
            counts = self.loads, self.sources * both, self.outputs * (1 + training)
            measured = inside[number] if inside and training else 0
            loads, sources, outputs = (0, 0, 0) if measured else counts
            layer = (loads * row, self.slots * row * both, sources * row, outputs * out * itemsize)
            other = self.arrivals * row, self.edges * EDGE_BYTES
            copies = max(0, self.copies * row - (measured or sum(layer[2:])))
            per_layer.append(DeviceBytes(*layer, *other, inside=measured + copies, small=self.small))
        return max(per_layer, key=lambda each: each.total)


@dataclass(frozen=True)
class HostBytes(_Sizes):
    """Bytes of rows in host memory, by name, at one moment; the kinds of the store."""

    inputs: int
    results: int
    aggregates: int
    gradients: int


def device_rows(schedule: Schedule, sizes: Sequence[Sequence[tuple[int, int]]]) -> list[DeviceRows]:
    """Of each rank the rows of its device memory.

    Args:
        schedule: Of all ranks.
        sizes: Of each rank and batch the chunk's (vertices, in-edges).
    """
    moved = np.array(
        [
            [np.bincount(each, minlength=schedule.num_ranks) for each in (ranks, schedule.owner[rows], once)]
            for batch in range(schedule.num_batches)
            for rows, ranks in (schedule.travelling(batch, ends) for ends in (False, True))
            for once in (schedule.owner[np.unique(rows)],)
        ]
    )  # rows by call, by received, sent or sent once, by rank
    result = []
    for rank, of_rank in enumerate(schedule.reads):
        reads, calls = [len(each) for each in of_rank], moved[:, :2, rank]
        vertices, edges = (max(counts) for counts in zip(*sizes[rank], strict=True))
        mine = schedule.residencies[rank]
        own = schedule.owner[mine.row] == rank
        loads = max(int(np.bincount(ends[own], minlength=1).max()) for ends in (mine.begin, mine.end))
        tables = 8 * (sum(reads) + len(own)) + OWN_BYTES * own.sum() + MOVED_BYTES * calls.sum()
        of_all = loads, schedule.num_slots[rank], max(reads, default=0), vertices
        copies = moved[:, ::2, rank].sum(1).max()
        counts = map(int, (calls.sum(1).max(), edges, calls.max(), copies, tables))
        small = SMALL_BYTES + SMALL_OF_CHUNK * min(len(of_rank), 64) * (rank == 0)
        result.append(DeviceRows(*of_all, *counts, small=small))
    return result


def host_bytes(
    num_rows: int, widths: Sequence[int], itemsize: int = 4, *, kept: bool = False, training: bool = True
) -> HostBytes:
    """Bytes of host memory at the moment of a training step, or of inference, that takes most.

    Layers are called one after another, each on the rows of the one before, and nobody else holds rows. A backward has
    gradients of a layer's results and, but for the first layer, of its rows. Where layers are computed again their rows
    live until then; kept aggregates do in their place.

    Args:
        num_rows: Vertices; of one rank or of all.
        widths: d_0 to d_L.
        itemsize: Bytes of an element.
        kept: Aggregates are kept.
        training: With a backward; else a layer's rows go when the next one's are there.
    """
    last = len(widths) - 1
    sums = [sum(widths[:layer]) for layer in range(last + 1)]
    pairs = [(widths[layer] if layer else 0) + widths[layer + 1] for layer in range(last)]
    # (results, aggregates, gradients) in elements of a row: as a layer ends, of the loss, as a layer's backward ends
    if not training:
        moments = [(results, 0, 0) for results in pairs]
    elif kept:
        moments = [(pairs[layer], sums[layer + 1], 0) for layer in range(last)]
        moments.append((widths[last], sums[last], widths[last]))
        moments += [(0, sums[layer + 1], pairs[layer]) for layer in reversed(range(last))]
    else:
        results = [before - widths[0] for before in sums[1:]]
        moments = [(results[-1] + widths[last], 0, widths[last])]
        moments += [(results[layer], 0, pairs[layer]) for layer in reversed(range(last))]
    most = max(moments, key=sum)
    return HostBytes(*(num_rows * itemsize * elements for elements in (widths[0], *most)))


def smallest_fitting(
    peak: Callable[[int], int], limit: int, most: int, precision: float = 0.0
) -> tuple[int, int]:
    """The smallest number of chunks whose peak is at most ``limit`` bytes, found by few tries.

    Args:
        peak: Bytes for a number of chunks: about in proportion to one over it, or falling more slowly, as where one
            vertex reads most rows. So each try has twice as many, until one fits or two take more than one before.
        limit: Bytes that may be taken.
        most: Chunks that are tried.
        precision: A peak that is by at most this part below the limit is near enough.

    Returns:
        Chunks and their peak; where none fit, those of the least peak that was seen.
    """
    peaks: dict[int, int] = {}
    low, high, chunks, slope = 0, most + 1, 1, 1.3
    while high - low > 1:
        peaks[chunks] = peak(chunks)
        low, high = (low, chunks) if peaks[chunks] <= limit else (chunks, high)
        latest = list(peaks.values())[-2:]  # one may be worse by chance: cuts are uneven
        grows = high > most and min(latest) > min(peaks.values())
        near = (1 - precision) * limit < peaks[chunks] <= limit
        if low == 0 or grows or (precision and near):
            break
        before = high if high <= most else max([each for each in peaks if each < low], default=0)
        if before and peaks[before] != peaks[low]:  # on a line of logarithms
            slope = math.log(low / before) / math.log(peaks[before] / peaks[low])
        room = 1 + (high - low) // 8 if high <= most else 1  # from either end, so that what is left shrinks
        times = (peaks[low] / max(1, limit)) ** min(slope, 2.0)
        chunks = min(max(math.ceil(low * times), low + room), high - room)
    best = high if high <= most else min(peaks, key=peaks.__getitem__)
    return best, peaks[best]
