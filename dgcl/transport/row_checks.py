"""Checks the rows that a user gives to a call: number, layout, device, and a type that can be summed.

``version_of`` counts changes in place, so that rows which change between start and wait of an exchange are noticed;
``as_memory`` copies rows that memory holds in another order.
Called by `dgcl/communicator`, `dgcl/autograd/operators`, `dgcl/aggregation/aggregator`, `dgcl/nn/in_place`,
`dgcl/offload/keeping` and others. Free to change while wrong rows raise before anything is sent, with what was given
and a way out (`tests/dgcl/test_communicator.py`), and changed rows raise (`tests/dgcl/autograd/test_pending.py`).
"""

import functools
from typing import Any

import torch
from torch import Tensor

from dgcl.ranks.tensors import require_tensors
from dgcl.transport.common.dtypes import row_type


def check_rows(
    rows: Any, expected: int, words: str, rank: int, device: torch.device, *, any_device: bool = False
) -> None:
    """Raise unless ``rows`` is a dense tensor of ``expected`` rows on ``device``.

    Args:
        rows: What the caller gave.
        expected, words: How many rows it must have, and what that number is called.
        rank: Whose call it is.
        device: Where the communicator's ranks exchange rows.
        any_device: It may be anywhere.

    Raises:
        TypeError, ValueError: Otherwise.
    """
    require_tensors(rows=rows)
    if rows.dim() == 0 or rows.shape[0] != expected:
        hint = ""
        if words == "num_owned":
            hint = (
                "; dispatch_features gives a rank the rows of its own vertices (of a table of all:"
                " table[comm.owned_ids]), and a layer returns such rows; what graph_allgather gave goes into a layer"
            )
        raise ValueError(
            f"rows must have {words} = {expected} rows on rank {rank} (got shape {tuple(rows.shape)}){hint}"
        )
    if rows.layout != torch.strided:
        raise ValueError(f"rows must be a dense tensor (got {rows.layout}); call .to_dense()")
    if rows.device != device and (rows.is_meta or not any_device):
        where = "the CPU" if device.type == "cpu" else str(device)
        raise ValueError(
            f"rows must be on {where}, where this communicator's ranks exchange rows (got {rows.device}); move "
            "them, or give build_comm_info another device"
        )


def as_memory(rows: Tensor) -> Tensor:
    """The rows themselves; or a copy of those of a :class:`dgcl.Offload`, whose memory is in another order."""
    convert = None if type(rows) is Tensor else getattr(rows, "in_owned_order", None)
    return rows if convert is None else convert()


def version_of(rows: Tensor | None) -> int | None:
    """Number of in-place changes so far; None in inference mode, which does not count them, and for no tensor."""
    return None if rows is None or rows.is_inference() else rows._version


@functools.cache
def check_summable_dtype(dtype: torch.dtype) -> None:
    """Raise unless rows of elements of this type can be summed.

    Raises:
        TypeError: The type is not summable.
    """
    if row_type(dtype.to_real(), 1).sum_code < 0:
        raise TypeError(f"rows: {dtype} rows cannot be summed; convert them to a wider type first")
