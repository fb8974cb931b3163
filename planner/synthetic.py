"""Draws synthetic relations of given sizes, without building a graph.

Vertices are split evenly over ranks. Each has a power-law number of readers, a share of them (``inside``) in its
own part, the others likelier in nearer parts (by rank). The parts of its readers are its destinations.
>>> relation = synthetic_relation("web-google", 8, scale=0.01)
>>> relation.world_size, relation.num_vertices < 8757
(8, True)

Called by `dgcl/advisor/choice`, `dgcl/advisor/counts`, `dgcl/cli/advise`, `dgcl/cli/plan` and `dgcl/cli/warmup`. Free
to change while sizes are those asked for, and a seed gives the same relation (`tests/planner/test_synthetic.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array, MaskArray
from dgcl.planner.relation import Relation, mask_words

# A reader is in the vertex's own part with the probability that a good partition leaves (``inside``), else in another
# part, likelier in a nearer one (by rank), as communities lie under recursive partitioning.

_DRAWS = 1 << 22  # readers drawn at a time
_MOST_VERTICES, _MOST_EDGES = 1 << 29, 1 << 36


@dataclass(frozen=True)
class GraphShape:
    """The sizes of a graph and how well it can be partitioned.

    Attributes:
        num_vertices, num_edges: directed edges.
        inside: share of a vertex's readers in its own part at `parts` parts; what is outside grows with the
            logarithm of the number of parts.
        parts: number of parts that ``inside`` is for.
        exponent: power law of the number of readers, > 1; smaller means heavier hubs.
        evenness: > 0; how equal vertices are in their share of readers outside (the sum of the two parameters of a
            beta distribution). Below 2 most vertices are either well inside a community or at its edge.
        spread: how fast likelihood falls with the distance between ranks; 0: all other parts are equally likely.
    """

    num_vertices: int
    num_edges: int
    inside: float
    parts: int = 8
    exponent: float = 2.2
    evenness: float = 1.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        if self.num_vertices < 1 or self.num_edges < 0:
            raise ValueError(f"a graph needs vertices (got {self.num_vertices} and {self.num_edges} edges)")
        if self.num_vertices > _MOST_VERTICES or self.num_edges > _MOST_EDGES:
            raise ValueError(
                f"at most {_MOST_VERTICES} vertices and {_MOST_EDGES} edges can be drawn (got {self.num_vertices:.6g}"
                f" and {self.num_edges:.6g}; take a smaller scale)"
            )
        if not 0 <= self.inside <= 1:
            raise ValueError(f"inside must be a share from 0 to 1 (got {self.inside})")
        if self.parts < 2 or self.exponent <= 1 or self.evenness <= 0 or self.spread < 0:
            raise ValueError(
                "parts must be >= 2, exponent > 1, evenness > 0 and spread >= 0"
                f" (got {self.parts}, {self.exponent}, {self.evenness}, {self.spread})"
            )

    def scaled(self, scale: float) -> GraphShape:
        """So many times the vertices and edges."""
        return replace(
            self,
            num_vertices=max(1, round(self.num_vertices * scale)),
            num_edges=round(self.num_edges * scale),
        )


# Sizes: Table 4 of the DGCL paper (Cai et al., EuroSys 2021). The quality of partitions is assumed: it puts the average
# number of destinations of a boundary vertex at 8 parts near what the figures of that paper and of METIS suggest.
SHAPES: Mapping[str, GraphShape] = MappingProxyType(
    {
        "reddit": GraphShape(233_000, 110_000_000, inside=0.75, exponent=2.5),
        "com-orkut": GraphShape(3_070_000, 117_000_000, inside=0.80, exponent=2.3),
        "web-google": GraphShape(875_713, 5_105_039, inside=0.97, exponent=2.1),
        "wiki-talk": GraphShape(2_390_000, 5_020_000, inside=0.60, exponent=1.9, spread=0.3),
    }
)


def synthetic_relation(
    shape: str | GraphShape, world_size: int, *, seed: int = 0, scale: float = 1.0
) -> Relation:
    """Draw a relation.

    Time and memory grow with the number of readers outside (tens of millions for the paper's largest
    graphs: seconds, and some 100 MB beyond the result).

    Args:
        shape: a key of ``SHAPES``, or other sizes.
        world_size: number of ranks.
        seed: of the draw; the same arguments give the same relation with the same numpy.
        scale: multiplies vertices and edges.

    Raises:
        ValueError: an unknown name, or sizes out of range.
    """
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise ValueError(f"shape must be one of {', '.join(SHAPES)}, or a GraphShape (got {shape!r})")
        shape = SHAPES[shape]
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1 (got {world_size})")
    if not 0 < scale <= 1e12:
        raise ValueError(f"scale must be positive, and at most 1e12 (got {scale})")
    shape = shape.scaled(scale)
    rng = np.random.default_rng(seed)
    sources, masks, counts = [], [], []
    share = np.diff(np.linspace(0, shape.num_vertices, world_size + 1).round().astype(np.int64))
    for rank in range(world_size if world_size > 1 else 0):
        mask, count = _classes_of(rng, shape, rank, world_size, int(share[rank]))
        sources.append(np.full(count.shape[0], rank, np.int32))
        masks.append(mask)
        counts.append(count)
    if not sources:
        return Relation.from_classes(world_size, [])
    return Relation(world_size, np.concatenate(sources), np.concatenate(masks), np.concatenate(counts))


def _classes_of(
    rng: np.random.Generator, shape: GraphShape, rank: int, world_size: int, num_vertices: int
) -> tuple[MaskArray, Int64Array]:
    """Draw the destination masks of one rank's vertices; return the distinct ones, sorted, and their counts."""
    readers = _power_law(rng, shape, num_vertices)
    outside = rng.binomial(readers, _outside(rng, shape, world_size, num_vertices))
    probabilities = _part_probabilities(shape, rank, world_size)
    words = mask_words(world_size)
    masks = np.zeros((num_vertices, words), np.uint64)
    boundary = np.flatnonzero(outside)
    ends = np.cumsum(outside[boundary])
    begin = 0
    while begin < boundary.shape[0]:
        before = int(ends[begin - 1]) if begin else 0
        stop = max(begin + 1, int(np.searchsorted(ends, before + _DRAWS, side="right")))
        vertex = np.repeat(boundary[begin:stop], outside[boundary[begin:stop]])
        dest = np.searchsorted(probabilities, rng.random(vertex.shape[0]), side="right")
        bit = np.uint64(1) << (dest & 63).astype(np.uint64)
        np.bitwise_or.at(masks.reshape(-1), vertex * words + (dest >> 6), bit)
        begin = stop
    return _distinct(masks[boundary])


def _power_law(rng: np.random.Generator, shape: GraphShape, num: int) -> Int64Array:
    """Draw the numbers of readers of ``num`` vertices: Pareto, rounded, of the shape's mean, at most all vertices."""
    mean = shape.num_edges / shape.num_vertices
    raw = (1 - rng.random(num)) ** (-1 / (shape.exponent - 1))  # Pareto from 1, density ~ x ** -exponent
    raw = np.minimum(raw, shape.num_vertices / max(1.0, mean))
    scaled = raw * (mean / raw.mean()) if num else raw
    low = np.floor(scaled)
    return (low + (rng.random(num) < scaled - low)).astype(np.int64)


def _outside(rng: np.random.Generator, shape: GraphShape, world_size: int, num: int) -> FloatArray:
    """Draw, for each vertex, the probability that a reader is in another part."""
    mean = min((1 - shape.inside) * np.log2(world_size) / np.log2(shape.parts), 1 - 1 / world_size)
    if mean <= 0:
        return np.zeros(num)
    return rng.beta(mean * shape.evenness, (1 - mean) * shape.evenness, num)


def _part_probabilities(shape: GraphShape, rank: int, world_size: int) -> FloatArray:
    """Return the cumulative probabilities of the parts that a reader outside is in."""
    distance = np.abs(np.arange(world_size) - rank).astype(np.float64)
    distance[rank] = 1.0
    weight = distance**-shape.spread
    weight[rank] = 0.0
    cumulative = np.cumsum(weight / weight.sum())
    cumulative[np.flatnonzero(weight)[-1] :] = 1.0  # sums end short of 1 by a rounding
    return np.asarray(cumulative, np.float64)


def _distinct(masks: MaskArray) -> tuple[MaskArray, Int64Array]:
    """Return the distinct rows and their counts, sorted as integers, the last word most significant."""
    order = np.lexsort(tuple(masks[:, word] for word in range(masks.shape[1])))
    ordered = masks[order]
    fresh = np.ones(ordered.shape[0], np.bool_)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.flatnonzero(fresh)
    return ordered[first], np.diff(np.append(first, ordered.shape[0])).astype(np.int64)
