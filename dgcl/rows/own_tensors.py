"""Converts between rows in one device's view and this rank's own plain tensors, for those who write layers.

``local`` gives this rank's rows, ``as_rows`` takes some, ``collected`` gives all rows to every rank. In what ``local``
gives, ends of edges have this rank's numbers, and a replicated value's gradient is a share.
Called by users (``dgcl.local``, ``dgcl.as_rows``), `dgcl/api`, `dgcl/distributed/check` and
`dgcl/distributed/rank_graph`. Free to change while ``as_rows`` of a graph that ranks built trains as on one device
(`tests/dgcl/rows/test_own_ranks.py`), and rows are those that were dispatched
(`tests/dgcl/frameworks/test_dispatch.py`).
"""

from copy import copy
from typing import Any

from torch import Tensor

from dgcl.aggregation.edge_sets import edge_set_of
from dgcl.rows.row_sums import whole
from dgcl.rows.tensor import OneDevice, Rows, plain, rows, stored, unseen
from dgcl.rows.view import view_of


def local(x: Any) -> Any:
    """This rank's rows as a plain tensor, with their gradient.

        >>> mine = dgcl.local(data.x)               # (rows of this rank, F)
        >>> h = dgcl.as_rows(kernel(mine), like=data.x)

    Ends of edges become this rank's numbers: sources of [owned | halo] rows, targets of owned ones. Gradients of
    rows are complete; of replicated values each rank has a share, and their sum is the gradient.

    Args:
        x: Rows, or a replicated value, which is the same on every rank.
    """
    with unseen():
        return stored(x)


def as_rows(tensor: Tensor, like: Any) -> Tensor:
    """This rank's rows in one device's view.

        >>> comm = dgcl.build_from_local(owned_ids, edges)
        >>> x = dgcl.as_rows(my_x, comm)            # rows of all vertices, each rank has given its own
        >>> edge_index = dgcl.as_rows(comm.local_graph("pyg").edge_index, comm)

    Args:
        tensor: ``(rows of this rank, *F)`` plain; with a communicator also its ``edge_index``.
        like: Rows, whose vertices or edges they are, in that order; or a communicator, whose vertices they are.
            Collective for a communicator's first.

    Raises:
        TypeError: ``like`` is neither.
        ValueError: There are more or fewer rows than ``like`` has here.
    """
    if hasattr(like, "exchanges"):
        view = view_of(like)
        if isinstance(tensor, Tensor) and getattr(edge_set_of(tensor), "comm", None) is like:
            return view.edge_index()
        space, number = view.vertices[""], like.num_owned
    elif type(like) is Rows:
        space, number = like._space, like._local.shape[like._axis]
    else:
        raise TypeError(
            f"like must be rows, as dgcl.dispatch gives them, or a dgcl.Communicator (got {type(like).__name__})"
        )
    with unseen():
        if not isinstance(tensor, Tensor) or type(tensor) is Rows or tensor.shape[:1] != (number,):
            what = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(
                f"tensor must be plain, with the {number} rows that like has on this rank (got {what})"
            )
        return rows(plain(tensor), space)


def collected(x: Any) -> Any:
    """All rows in the order of one device, plain, on every rank; of data or a graph all of it. Collective."""
    if isinstance(x, Tensor):
        with unseen():
            return whole(x)
    if not hasattr(x, "stores"):  # a graph of DGL
        return x.whole()
    out = copy(x)
    for store in out.stores:
        store.update({name: collected(each) for name, each in store.items() if isinstance(each, OneDevice)})
    return out.cpu()
