"""Lets each rank ask others for rows by number, with other numbers in each call.

It goes through the control plane: one exchange of numbers when requests are made, and one of rows each time that they
travel, as answers or back (gradients). Numbers may repeat and be in any order.

Called by `dgcl/autograd/fetch`, `dgcl/communicator` and `dgcl/nn/shared_nodes`. Free to change while rows come in the
order of the numbers asked for, with their bits, and gradients return to their owners
(`tests/dgcl/autograd/test_fetch.py`).
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.ranks.control import Control


class Requests:
    """What this rank asks of every rank, and every rank of it. Collective to make.

    Args:
        control: The control plane.
        ids: ``(n,)`` numbers of the rows that this rank wants, in any order, repeated or not; n differs by rank.
        owner: ``(n,)`` the rank that has each.

    Attributes:
        incoming: What each rank asks this one for, by rank: the numbers as they were given.
    """

    def __init__(self, control: Control, ids: NDArray[Any], owner: NDArray[Any]) -> None:
        self._control = control
        order = np.argsort(owner, kind="stable")
        bounds = [0, *np.cumsum(np.bincount(owner, minlength=control.world_size)).tolist()]
        self._order, self._pieces = torch.from_numpy(order), list(pairwise(bounds))
        self.incoming: list[NDArray[Any]] = control.all_to_all([ids[order[a:b]] for a, b in self._pieces])

    def answer(self, rows: list[Tensor]) -> Tensor:
        """``(n, *F)``, what this rank asked for; ``rows`` are its answers: for each rank those of ``incoming``."""
        pieces = self._control.all_to_all([piece.detach().cpu() for piece in rows])
        received = torch.cat(pieces).to(rows[0].device)
        return torch.empty_like(received).index_copy_(0, self._order.to(received.device), received)

    def give_back(self, rows: Tensor) -> list[Tensor]:
        """The other way: ``(n, *F)`` go to those that this rank asked; from each rank come those of ``incoming``."""
        sent = rows.detach().index_select(0, self._order.to(rows.device)).cpu()
        # Clones: a slice would travel with all of the storage.
        pieces: list[Tensor] = self._control.all_to_all([sent[a:b].clone() for a, b in self._pieces])
        return [piece.to(rows.device) for piece in pieces]
