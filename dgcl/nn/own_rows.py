"""A rank's own rows: whether they are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


def require_whole_rows(comm: Communicator, rows: Tensor) -> None:
    """Refuse slices of rows, on a grid.

    Raises:
        ValueError: There are as many rows as this rank has slices.
    """
    if comm.are_slices(len(rows)):
        raise ValueError(
            f"outputs must be whole rows of the {comm.num_owned} vertices of rank {comm.rank}, and {len(rows)} are"
            " those of its slices: bring them back with comm.rows first"
        )
