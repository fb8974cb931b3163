"""Tells which rows of a tensor each rank stores, in which order, and fetches rows by number.

All tensors of one set of vertices or edges share a ``Space``; a mask, numbers, or a concatenation make a new one. Where
the rows come in one device's order (``positions``) and who stores them is exchanged when first read, so every rank must
read it then.
Called by `tensor`, `indexing`, `row_sums`, `view`, `dgcl/distributed/adapters` and others. Free to change while masks,
numbers and joined rows keep the order of one device (`tests/dgcl/rows/test_sweep.py`; masks that are empty on some
ranks: `tests/dgcl/rows/test_programs.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.autograd.fetch import fetch_rows
from dgcl.communicator import Communicator


@dataclass(frozen=True, eq=False)
class Ends:
    """What numbers in an ``edge_index`` of a rank are.

    Attributes:
        exchange: Of the communicator, which brings the rows that sources number; None: both ends are numbered by ids.
        spaces: Of the vertices at sources and at targets.
        ids: By number the vertex at a source, and at a target, within its type; None: they are ids.
    """

    exchange: str | None
    spaces: dict[str, Space]
    ids: dict[str, Tensor]


class Space:
    """Rows shared out over ranks: all vertices, all edges, some of them, or what was made of those.

    Attributes:
        comm: The communicator.
        root: What the keys count: ("vertices", type), ("edges", type), or what was made of them.
        keys: ``(rows,)`` int64, where this rank's rows come in the order of the root; each once in all ranks.
        size: Rows on all ranks.
        ends: Of edges what their ends number.
    """

    def __init__(
        self, comm: Communicator, root: Any, keys: Tensor, size: int | None = None, ends: Ends | None = None
    ) -> None:
        self.comm, self.root, self.keys, self.ends = comm, root, keys, ends
        self._positions = keys if size is not None else None
        self.size: int = sum(self.exchange(len(keys))) if size is None else size
        self._owners: np.ndarray | None = None
        self._compared: dict[int, tuple[Space, bool]] = {}
        self._taken = WeakTensorKeyDictionary()

    @property
    def positions(self) -> Tensor:
        """``(rows,)`` int64: where this rank's rows come in the order of one device. Collective when first read."""
        if self._positions is None:  # of a subset: how many rows of all ranks have smaller keys
            every = np.sort(np.concatenate(self.exchange(self.keys.numpy())))
            self._positions = torch.from_numpy(np.searchsorted(every, self.keys.numpy()))
        return self._positions

    @property
    def owners(self) -> np.ndarray:
        """``(size,)`` int32: the rank that stores each row. Collective when first read."""
        if self._owners is None:
            self._owners = np.empty(self.size, np.int32)
            for rank, theirs in enumerate(self.exchange(self.positions.numpy())):
                self._owners[theirs] = rank
        return self._owners

    def exchange(self, value: Any) -> list[Any]:
        """Small objects of all ranks, by rank. Collective."""
        with self.comm.collective("rows"):
            return list(self.comm.control.exchange(value))

    def same(self, other: Space) -> bool:
        """Whether two spaces have the same rows on every rank. Collective for two that were made apart."""
        if self is other:
            return True
        if self.comm is not other.comm or self.size != other.size:
            return False
        if id(other) not in self._compared:
            if len(self._compared) > 32:  # those of masks that are gone
                self._compared.clear()
            a, b = (self.keys, other.keys) if self.root == other.root else (self.positions, other.positions)
            self._compared[id(other)] = other, all(self.exchange(torch.equal(a, b)))
        return self._compared[id(other)][1]

    def subset(self, mask: Tensor, holder: Any) -> Space:
        """The space of the rows that a mask of this rank's rows leaves; kept at ``holder``, which has the mask.

        Collective when it is new.
        """
        kept = holder.__dict__.setdefault("_subsets", {})
        now = getattr(holder, "_local", mask)._version
        version, _, space = kept.get(id(self), (-1, None, None))
        if version != now or space is None:
            if len(kept) > 8:  # those of spaces that are gone
                kept.clear()
            space = Space(self.comm, ("some", self.root), self.keys[mask], ends=self.ends)
            kept[id(self)] = now, self, space
        return space

    def taken(self, ids: Tensor) -> tuple[Tensor, Space]:
        """Of rows by number, the same numbers on every rank: which of this rank's rows, and their space.

        Row j of the result is stored by the rank that stores row ``ids[j]``. Collective when it is new.

        Raises:
            IndexError: A number is outside.
        """
        version, kept = self._taken.get(ids, (-1, None))
        if kept is None or version != ids._version:
            requested = ids.detach().cpu().long().reshape(-1)
            if len(requested) and (int(requested.min()) < -self.size or int(requested.max()) >= self.size):
                odd = requested[(requested < -self.size) | (requested >= self.size)][0]
                raise IndexError(f"index {int(odd)} is out of bounds for dimension 0 with size {self.size}")
            at = torch.where(requested < 0, requested + self.size, requested).numpy()
            places = np.flatnonzero(self.owners[at] == self.comm.rank)
            order = np.argsort(self.positions.numpy(), kind="stable")
            mine = np.searchsorted(self.positions.numpy(), at[places], sorter=order)
            space = Space(
                self.comm, ("taken", len(requested)), torch.from_numpy(places), len(requested), self.ends
            )
            kept = torch.from_numpy(order[mine]), space
            self._taken[ids] = ids._version, kept
        return kept

    def fetch(self, local: Tensor, numbers: Tensor) -> Tensor:
        """Rows by number, other numbers on each rank, from the ranks that store them; differentiable. Collective."""
        requests = local.to(torch.uint8) if local.dtype == torch.bool else local
        numbers = torch.where(numbers < 0, numbers + self.size, numbers)
        bad = int(len(numbers) > 0 and not (int(numbers.min()) >= 0 and int(numbers.max()) < self.size))
        if sum(self.exchange(bad)):
            raise IndexError(f"index out of bounds for dimension 0 with size {self.size}")
        out = fetch_rows(
            self.comm.control,
            self.comm.collective,
            requests,
            numbers.cpu().numpy(),
            self.owners,
            self.positions.numpy(),
        )
        return out.to(local.dtype)

    def product(self, inner: int) -> Space:
        """The space of rows and columns that become one dimension, of ``inner`` columns."""
        keys = (self.keys[:, None] * inner + torch.arange(inner, device="cpu")).flatten()
        size = self.size * inner if self._positions is self.keys else None
        return Space(self.comm, ("product", self.root, inner), keys, size)


def joined(spaces: list[Space]) -> Space:
    """The space of rows behind each other; of edges that number the same ends, edges. Collective for subsets."""
    first, keys, roots = 0, [], []
    for space in spaces:
        keys.append(space.positions + first)
        roots.append((space.root, space.size))
        first += space.size
    ends = spaces[0].ends if all(space.ends is spaces[0].ends for space in spaces) else None
    return Space(spaces[0].comm, ("joined", *roots), torch.cat(keys), first, ends)
