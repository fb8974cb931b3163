"""Between one device's view and this rank's own tensors, for those who write layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dgcl.rows.sums import whole
from dgcl.rows.tensor import Rows, plain, rows, unseen


def local(x: Any) -> Any:
    """This rank's rows, a plain tensor; autograd goes on through it.

        >>> mine = dgcl.local(data.x)               # (rows of this rank, F)
        >>> h = dgcl.as_rows(kernel(mine), like=data.x)

    Ends of edges become this rank's numbers: sources of [owned | halo] rows, targets of owned ones. Gradients of
    rows are complete; of replicated values each rank has a share, and their sum is the gradient.

    Args:
        x: Rows, or a replicated value, which is the same on every rank.
    """
    with unseen():
        return x._local if type(x) is Rows else plain(x)


def as_rows(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's rows as rows of the same vertices or edges as others.

    Args:
        tensor: ``(rows of this rank, *F)`` plain.
        like: Rows, whose rows they are, in that order.

    Raises:
        TypeError: ``like`` is no rows.
        ValueError: There are more or fewer rows than ``like`` has here.
    """
    if type(like) is not Rows:
        raise TypeError(
            f"like must be rows, as dgcl.dispatch(data, typed=True) gives them (got {type(like).__name__})"
        )
    with unseen():
        number = like._local.shape[like._axis]
        if (
            not isinstance(tensor, Tensor)
            or type(tensor) is Rows
            or tensor.dim() == 0
            or len(tensor) != number
        ):
            what = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(
                f"tensor must be plain, with the {number} rows that like has on this rank (got {what})"
            )
        return rows(plain(tensor), like._space)


def collected(x: Tensor) -> Tensor:
    """All rows in the order of one device, plain, on every rank. Collective."""
    with unseen():
        return whole(x)  # type: ignore[no-any-return]
