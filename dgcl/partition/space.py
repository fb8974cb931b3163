"""Vertices that have places: a cell that repeats, boxes of ranks and what is near them, owners by place.

Places are in parts of the cell's vectors here, so that boxes, and distances from their sides, are one number for each
direction whatever the cell's angles are.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

#: Of a distance, by which boxes are wider than computed, so that rounding loses nothing; distances are compared later.
MARGIN = 1e-9


class Cell(NamedTuple):
    """Where places repeat.

    Attributes:
        vectors: (3, 3) rows; where the user has none, of length 1 and at right angles to the others.
        inverse: (3, 3) of the vectors.
        heights: (3,) distances between opposite sides.
        periodic: (3,) in which directions it repeats.
    """

    vectors: Floats
    inverse: Floats
    heights: Floats
    periodic: NDArray[np.bool_]

    @classmethod
    def of(cls, cell: Any, pbc: Any) -> "Cell":
        """The cell of arguments of :func:`dgcl.neighbors`.

        Raises:
            ValueError: They are no cell, or not one that repeats in these directions.
        """
        given = np.zeros(3) if cell is None else np.array(cell, np.float64)
        vectors = np.diagflat(given) if given.shape == (3,) else given
        if vectors.shape != (3, 3) or not np.isfinite(vectors).all():
            raise ValueError(f"cell must be three finite vectors, (3, 3), or lengths, (3,) (got {cell})")
        has = vectors.any(axis=1)
        repeats = has if pbc is None else np.array(pbc, bool)
        if repeats.shape not in ((), (3,)) or (repeats & ~has).any():
            raise ValueError(
                "pbc must be True or False, or three of them, and cell have a vector in each direction that repeats"
                f" (got pbc={pbc} and cell={cell})"
            )
        _, sizes, directions = np.linalg.svd(vectors)
        if (sizes[: has.sum()] <= 1e-12 * sizes[0]).any():
            raise ValueError(
                f"cell must have a volume; none of its vectors may lie in a plane of others (got {cell})"
            )
        vectors[~has] = directions[has.sum() :]
        inverse = np.linalg.inv(vectors)
        return cls(vectors, inverse, 1 / np.linalg.norm(inverse, axis=0), has & repeats)

    def displaced(self, positions: Floats, images: NDArray[np.int32]) -> Floats:
        """``positions + images @ vectors``, by operations on single numbers: the same bits wherever it is done."""
        moved = positions
        for axis in range(3):
            moved = moved + images[:, axis, None] * self.vectors[axis]
        return moved

    def gathered(self, positions: Floats) -> tuple[Floats, NDArray[np.int32]]:
        """Places near each other, behind the widest gap of each direction, and the images (n, 3) that are there.

        A rank's atoms at both ends of the cell so have a small box, across the border.
        """
        places, images = positions @ self.inverse, np.zeros((len(positions), 3), np.int32)
        for axis in np.flatnonzero(self.periodic) if len(places) else ():
            column = places[:, axis]
            ends = np.sort(column % 1)
            start = ends[np.argmax(np.diff(ends, prepend=ends[-1] - 1))]
            images[:, axis] = -np.floor(column - start)
        return places + images, images

    def near(self, places: Floats, box: Floats | None, cutoff: float) -> tuple[Ids, NDArray[np.int32]]:
        """Images of places within the cutoff of a box (2, 3), its sides: rows, and by how many cells they are moved."""
        rows = np.arange(0 if box is None else len(places))
        images = np.zeros((len(rows), 3), np.int32)
        if box is None:
            return rows, images
        reach = cutoff * (1 + MARGIN) / self.heights + MARGIN
        for axis, (low, high) in enumerate(zip(box[0] - reach, box[1] + reach, strict=True)):
            column, moves = places[rows, axis], range(1)
            if self.periodic[axis] and len(rows):
                moves = range(math.ceil(low - column.max()), math.floor(high - column.min()) + 1)
            kept = [np.flatnonzero((column + move >= low) & (column + move <= high)) for move in moves]
            every = np.concatenate([*kept, np.zeros(0, np.int64)])
            rows, images = rows[every], images[every]
            images[:, axis] = np.repeat(np.array(moves, np.int32), [*map(len, kept)])
        return rows, images


def bisect(points: Floats, sample: Floats, num_ranks: int) -> NDArray[np.int32]:
    """Owners of points: space is cut in two, across its longest side, until each rank has a box.

    Recursive coordinate bisection (Berger and Bokhari, 1987), where a sample of the points of all ranks decides.

    Args:
        points: (n, 3) this rank's.
        sample: (m, 3) the same on every rank.
        num_ranks: How many boxes; each has as many points of the sample, to one.
    """
    owner = np.zeros(len(points), np.int32)
    todo = [(np.arange(len(points)), sample, 0, num_ranks)]
    while todo:
        rows, some, first, last = todo.pop()
        owner[rows] = first
        if last - first == 1 or not len(some):
            continue
        middle, axis = (first + last) // 2, np.argmax(np.ptp(some, axis=0))
        place = len(some) * (middle - first) // (last - first)
        border = np.partition(some[:, axis], place)[place]
        below, some_below = points[rows, axis] < border, some[:, axis] < border
        todo += [
            (rows[below], some[some_below], first, middle),
            (rows[~below], some[~some_below], middle, last),
        ]
    return owner
