"""Geometry of periodic boxes: images of points near a box, and owners by recursive bisection.

Points are in fractions of the cell's vectors, so that boxes, and distances from their sides, are one number for each
direction whatever the cell's angles are.
Called by `dgcl/prepare/neighbor_lists`. Free to change while neighbour lists equal those of brute force over images,
and ranks get only points near their boxes (`tests/dgcl/prepare/test_neighbor_lists.py`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Images = NDArray[np.int32]

#: By which boxes are wider than computed, so that rounding loses nothing; distances are compared later.
MARGIN = 1e-9


class Cell(NamedTuple):
    """Where places repeat.

    Attributes:
        vectors: (3, 3) rows; where the user has none, of length 1 and at right angles to the others.
        inverse: (3, 3) of the vectors.
        periodic: (3,) in which directions it repeats.
    """

    vectors: Floats
    inverse: NDArray[Any]
    periodic: Any

    @classmethod
    def of(cls, cell: Any, pbc: Any) -> "Cell":
        """The cell of arguments of :func:`dgcl.neighbors`.

        Raises:
            ValueError: They are no cell, or not one that repeats in these directions.
        """
        try:
            numbers = np.zeros(3) if cell is None else np.array(cell, np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros(0)  # refused below
        vectors = np.diagflat(numbers) if numbers.shape == (3,) else numbers
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
        return cls(vectors, np.linalg.inv(vectors), has & repeats)

    def gathered(self, positions: Floats) -> tuple[Floats, Images]:
        """Places near each other, behind the widest gap of each direction, and the images (n, 3) that are there.

        A rank's vertices at both ends of the cell so have a small box, across the border.
        """
        places = positions @ self.inverse
        ends = np.sort(np.concatenate([np.zeros((1, 3)), places % 1]), axis=0)
        gaps = np.diff(ends, axis=0, prepend=ends[-1:] - 1)
        start = ends[gaps.argmax(axis=0), range(3)]
        images = np.where(self.periodic, -np.floor(places - start), 0).astype(np.int32)
        return places + images, images

    def near(self, places: Floats, box: Floats, cutoff: float) -> tuple[Ids, Images]:
        """Images of places within the cutoff of a box (2, 3), its sides: rows, and by how many cells they are moved."""
        rows = np.arange(len(places) if box[0, 0] == box[0, 0] else 0)  # nan is the box of no vertices
        images = np.zeros((len(rows), 3), np.int32)
        reach = cutoff * np.linalg.norm(self.inverse, axis=0) * (1 + MARGIN) + MARGIN
        for axis, (low, high) in enumerate(zip(box[0] - reach, box[1] + reach, strict=True)):
            column, moves = places[rows, axis], np.zeros(1)
            if self.periodic[axis] and len(rows):
                moves = np.arange(np.ceil(low - column.max()), np.floor(high - column.min()) + 1)
            moved = column + moves[:, None]
            which, kept = np.nonzero((moved >= low) & (moved <= high))
            rows, images = rows[kept], images[kept]
            images[:, axis] = moves[which]
        return rows, images


def bisect(points: Floats, sample: Floats, first: int, last: int) -> NDArray[np.int32]:
    """Owners of points: space is cut in two, across its longest side, until each rank has a box.

    Recursive coordinate bisection (Berger and Bokhari, 1987), where a sample of the points of all ranks decides.

    Args:
        points: (n, 3) this rank's.
        sample: (m, 3) the same on every rank.
        first, last: Ranks from the first to before the last; each box has as many points of the sample, to one.
    """
    owner = np.full(len(points), first, np.int32)
    if last - first > 1 and len(sample):
        middle, axis = (first + last) // 2, np.argmax(np.ptp(sample, axis=0))
        place = len(sample) * (middle - first) // (last - first)
        border = np.partition(sample[:, axis], place)[place]
        for ranks, side in (((first, middle), np.less), ((middle, last), np.greater_equal)):
            there = side(points[:, axis], border)
            owner[there] = bisect(points[there], sample[side(sample[:, axis], border)], *ranks)
    return owner
