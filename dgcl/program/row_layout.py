"""Says which vertices the owned and halo rows of an exchange are on one rank, and how many.

Halo rows are those that an expand brings from other ranks. On a grid (:mod:`dgcl.grid`) rows are cut into slices of
their columns, numbered vertex * slices + slice; ``layout_of_vertices`` gives the vertices behind them. Counts are
stored numbers, because compilers do not see through the lengths of arrays.
Called by `dgcl/communicator`, `dgcl/aggregation/slice_places` and `dgcl/bench/baselines`. Free to change while a
communicator's ids and counts are those of its partition (`tests/dgcl/test_communicator.py`), also on a grid
(`tests/dgcl/grid/test_slices.py`).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Layout:
    """What the rows of one exchange stand for on one rank.

    Attributes:
        owned_ids, halo_ids: Global ids of the owned and of the halo rows, int64.
        num_owned: Rows that go into an expand, and come out of a fold.
        num_halo: Rows that an expand brings from other ranks.
        num_local: Rows that come out of an expand, and go into a fold: owned, then halo.
    """

    owned_ids: NDArray[np.int64]
    halo_ids: NDArray[np.int64]
    num_owned: int = field(init=False)
    num_halo: int = field(init=False)
    num_local: int = field(init=False)

    def __post_init__(self) -> None:  # numbers: compilers do not see through the lengths of arrays
        counts = {"num_owned": len(self.owned_ids), "num_halo": len(self.halo_ids)}
        for name, count in {**counts, "num_local": sum(counts.values())}.items():
            object.__setattr__(self, name, count)

    @property
    def local_ids(self) -> NDArray[np.int64]:
        """Global ids of the rows that come out of an expand, in their order."""
        return np.concatenate([self.owned_ids, self.halo_ids])


def layout_of_vertices(items: Layout, slices: int) -> Layout:
    """The layout of vertices for a layout whose items are slices of their rows.

    An owned vertex has all its slices here, a halo row is one slice of a vertex.
    """
    if slices == 1:
        return items
    return Layout(items.owned_ids[::slices] // slices, items.halo_ids // slices)
