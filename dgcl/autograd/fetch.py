"""Fetches rows of any vertices from their owners, differentiably, without a plan: the work of :func:`dgcl.fetch`.

The adjoint of bringing rows is adding up rows that are given back, and the reverse, so derivatives of any order exist.
Rows are added by asking rank, then in the order of its ids; 16-bit floats in 32 bits.
Called by `dgcl/communicator` and `dgcl/rows/space`. Free to change while rows and their first and second derivatives
are those of an index into the whole matrix, repeated ids are added in a fixed order, and what one rank gets wrong is an
error on all (`tests/dgcl/autograd/test_fetch.py`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.ranks.control import Control
from dgcl.ranks.requests import Requests

Named = Callable[[str], AbstractContextManager[None]]


class _Fetch:
    """The requests of one call, and where the rows are that were asked for."""

    def __init__(self, collective: Named, requests: Requests, places: list[Tensor], num_rows: int) -> None:
        self._collective, self._requests, self._places, self._num_rows = (
            collective,
            requests,
            places,
            num_rows,
        )

    def bring(self, rows: Tensor) -> Tensor:
        with self._collective("fetch"):
            return self._requests.answer([rows.index_select(0, p.to(rows.device)) for p in self._places])

    def add_up(self, rows: Tensor) -> Tensor:
        """By asking rank, then in the order of its ids: the same bits in every run."""
        with self._collective("fetch (backward)"):
            pieces = self._requests.give_back(rows)
        wide = torch.float32 if rows.dtype in (torch.float16, torch.bfloat16) else rows.dtype
        total = rows.new_zeros((self._num_rows, *rows.shape[1:]), dtype=wide)
        places = torch.cat(self._places).to(rows.device)
        # index_put_ adds in the order of the places on every device, index_add_ on the CPU alone.
        total.index_put_((places,), torch.cat(pieces).to(wide), accumulate=True)
        return total.to(rows.dtype)


class _Travel(torch.autograd.Function):
    """Rows of one fetch, to those who asked or back."""

    @staticmethod
    def forward(rows: Tensor, fetch: _Fetch, back: bool) -> Tensor:
        return fetch.add_up(rows) if back else fetch.bring(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Fetch, bool], output: Tensor) -> None:
        _, ctx.fetch, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _Travel.apply(grad, ctx.fetch, not ctx.back), None, None


def fetch_rows(
    control: Control,
    collective: Named,
    rows: Tensor,
    ids: NDArray[np.int64],
    part: NDArray[np.int32],
    mine: NDArray[np.int64],
) -> Tensor:
    """``(n, *F)`` rows of vertices ``ids`` ``(n,)``, of any ranks. Collective.

    Args:
        control: The control plane.
        collective: Names calls on it, of the communicator.
        rows: This rank's, the first of them those of vertices ``mine``.
        ids: What this rank wants.
        part: ``(num_nodes,)`` the owner of each vertex.
        mine: Ids of the vertices that this rank owns, in the order of its rows.
    """
    with collective("fetch"):
        requests = Requests(control, ids, part[ids])
    order = np.argsort(mine)
    places = [
        torch.from_numpy(order[np.searchsorted(mine, each, sorter=order)]) for each in requests.incoming
    ]
    return _Travel.apply(rows, _Fetch(collective, requests, places, len(rows)), False)
