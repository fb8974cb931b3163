"""A grid of ranks, parts x depth x slices: which rank has which place, and which grids are legal.

>>> Grid(2, 1, 4).size
8
>>> [str(grid) for grid in legal_grids(4)]
['1,1,4', '1,2,2', '1,4,1', '2,1,2', '2,2,1', '4,1,1']

Called by `needs`, `items`, `dgcl/prepare/shares`, `dgcl/communicator`, `dgcl/advisor/spelling` and others. Free to
change while rank = (part * depth + k) * slices + s, and all grids of a number of ranks are found
(`tests/dgcl/grid/test_items.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from dgcl.topology.checks import shown

#: Grids that have a name.
NAMES = ("1d", "1.5d", "2d", "3d")


@dataclass(frozen=True, order=True)
class Grid:
    """P ranks as parts x depth x slices.

    Rank ``(part * depth + k) * slices + s`` stands at (part, k, s): slices are innermost, next to each other on the
    fastest links, then depth, then parts. A vertex belongs to one rank, its *owner*, who has its whole row. An *item*
    is a slice of a row: slice s of vertex v is item ``v * slices + s``, of 1 / slices of the columns. The edge u->v is
    summed, for slice s, by the rank at (part of v, k of u, s).

    Attributes:
        parts: Groups of heads: a rank sums edges into the vertices of its part, those of depth x slices ranks.
        depth: Groups of tails: of these edges it sums those out of vertices at its own k. 1: neighbourhoods are
            complete.
        slices: Groups of columns: it sums one slice of each row.

    Raises:
        ValueError: One of them is not a positive integer.
    """

    parts: int
    depth: int = 1
    slices: int = 1

    def __post_init__(self) -> None:
        for name in ("parts", "depth", "slices"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 1:
                raise ValueError(f"grid: {name} must be a positive integer (got {shown(value)})")
            object.__setattr__(self, name, index(value))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.parts * self.depth * self.slices

    @property
    def is_1d(self) -> bool:
        """Whether every rank sums the edges into its own vertices, whole rows at a time."""
        return self.depth == self.slices == 1

    def part_of(self, rank: Any) -> Any:
        """The part of a rank, or of each of an array of them."""
        return rank // (self.depth * self.slices)

    def depth_of(self, rank: Any) -> Any:
        """The k of a rank, or of each of an array of them."""
        return rank // self.slices % self.depth

    def slice_of(self, rank: Any) -> Any:
        """The slice of a rank, or of each of an array of them."""
        return rank % self.slices

    def slice_width(self, width: int) -> int:
        """Columns of a slice of rows of ``width`` columns, the last ones perhaps with padding."""
        return -(-width // self.slices)

    def __str__(self) -> str:
        """As the command line takes it."""
        return f"{self.parts},{self.depth},{self.slices}"


def legal_grids(world_size: int) -> list[Grid]:
    """All grids of so many ranks, sorted."""
    pairs = [(r, world_size // r) for r in range(1, world_size + 1) if world_size % r == 0]
    return [Grid(r, k, rest // k) for r, rest in pairs for k in range(1, rest + 1) if rest % k == 0]


def as_grid(value: Any, world_size: int) -> Grid:
    """The grid that a user asks for.

    Args:
        value: A :class:`Grid`; three integers, or a string of them such as "2,1,4"; or a name. "1d" is (P,1,1). "1.5d"
            and "2d" are, of the grids (parts,depth,1) and (parts,1,slices), the nearest to a square, and "3d", of
            all, the nearest to a cube; of two as near the one that moves fewer words where everything is needed.
        world_size: How many ranks there are.

    Raises:
        ValueError: It has another product than ``world_size``; names all grids that have it.
        TypeError: Nothing of these.
    """
    read = read_grid(value)
    grid = _named(read, world_size) if isinstance(read, str) else read
    if grid.size != world_size:
        legal = " ".join(f"({each})" for each in legal_grids(world_size))
        raise ValueError(
            f"grid ({grid}) is for {grid.parts} x {grid.depth} x {grid.slices} = {grid.size} ranks, and there are"
            f" {world_size}; of {world_size} ranks there are (parts,depth,slices) {legal}"
        )
    return grid


def read_grid(value: Any) -> Grid | str:
    """The grid, or the name of one, that :func:`as_grid` is given; raises what that does, for any number of ranks."""
    if isinstance(value, Grid) or (isinstance(value, str) and value in NAMES):
        return value
    if isinstance(value, str):
        sizes = value.split(",")
        if len(sizes) != 3 or not all(size.strip().isdecimal() for size in sizes):
            raise ValueError(
                f"grid must be {', '.join(map(repr, NAMES))} or parts,depth,slices such as '2,1,4'"
                f" (got {value!r})"
            )
        return Grid(*map(int, sizes))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or len(value) != 3:
        raise TypeError(f"grid must be three integers (parts, depth, slices), or a name (got {shown(value)})")
    return Grid(*value)


def _named(name: str, world_size: int) -> Grid:
    grids = [
        grid
        for grid in legal_grids(world_size)
        if name == "3d"
        or (name == "1d" and grid.is_1d)
        or (name == "1.5d" and grid.slices == 1)
        or (name == "2d" and grid.depth == 1)
    ]
    return min(
        grids,
        key=lambda grid: (grid.parts + grid.depth + grid.slices, round(dense_words(grid), 9), -grid.parts),
    )


def dense_words(grid: Grid) -> float:
    """Words that a rank receives in an aggregation, over n times the width, where every vertex is needed.

    Of equal shares, slices that divide the width, and w words in a row: w n times this.
    """
    inner = grid.depth * grid.slices
    return 1 / inner - 1 / (grid.size * grid.slices) + (inner - 1) / (grid.size * grid.slices)
