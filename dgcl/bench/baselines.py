"""Common exchanges without a plan, as transports with the same numbering of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import dgcl
from dgcl.bench.problems import from_needs
from dgcl.bench.transports import Baseline, Scratch
from dgcl.program.layout import Layout
from dgcl.ranks.context import context

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.ranks.control import Control


@dataclass(frozen=True, eq=False)
class _Needs:
    """Who reads what in one exchange, for a halo in the order of its owners.

    Attributes:
        layout: Of the exchange.
        index: Places among the owned rows, by reader.
        sends, receives: ``(P,)`` rows to and from each rank.
    """

    layout: Layout
    index: Tensor
    sends: list[int]
    receives: list[int]


class GlooTransport(Baseline):
    """``torch.distributed.all_to_all_single`` of packed rows: the usual code in plain torch.

    Rows are packed with ``index_select`` and sent with uneven splits; they arrive in the order of the halo, because
    that of a peer-to-peer plan is numbered by owner, and are put behind the owned rows. The way back adds with
    ``index_add_``.

    Raises:
        ValueError: The ranks are no process group, or a halo is not numbered by owner.
    """

    def __init__(self, comm: Communicator) -> None:
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() != comm.world_size:
            raise ValueError(
                "method 'gloo' needs ranks that are the processes of one torch.distributed group, not threads"
            )
        super().__init__(comm)
        self._scratch = Scratch()
        self._needs = [_find_needs(comm, layout) for layout in comm.layouts.values()]

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Pack, send, receive, concatenate."""
        needs = self._needs[exchange]
        return torch.cat([rows, self._receive(rows, needs, self._new(needs.layout.num_halo, rows))])

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Send halo rows to their owners and add."""
        needs = self._needs[exchange]
        return self._add(rows, needs, rows[: needs.layout.num_owned].clone())

    def _new(self, count: int, like: Tensor) -> Tensor:
        """Memory that a call needs for itself."""
        return like.new_empty(count, *like.shape[1:])

    def _receive(self, rows: Tensor, needs: _Needs, halo: Tensor) -> Tensor:
        """Send the owned rows that others read; their rows come to ``halo``."""
        import torch.distributed as dist

        packed = torch.index_select(rows, 0, needs.index, out=self._new(len(needs.index), rows))
        dist.all_to_all_single(halo, packed, needs.receives, needs.sends)
        return halo

    def _add(self, rows: Tensor, needs: _Needs, owned: Tensor) -> Tensor:
        """Send halo rows to their owners; what comes for this rank's is added to ``owned``."""
        import torch.distributed as dist

        arrived = self._new(len(needs.index), rows)
        halo = rows[needs.layout.num_owned :].contiguous()
        dist.all_to_all_single(arrived, halo, needs.sends, needs.receives)
        return owned.index_add_(0, needs.index, arrived)

    def poison(self) -> None:
        """Overwrite free blocks of the pool, and the buffers."""
        self._scratch.poison()
        super().poison()


class GlooKeptTransport(GlooTransport):
    """:class:`GlooTransport`, optimised with internals of this library that users do not have.

    No call pays for new memory, because buffers are kept and results come out of the communicator's pool, and rows
    arrive in place.
    """

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Pack, send, receive in place."""
        needs = self._needs[exchange]
        num_owned = needs.layout.num_owned
        result = self.result_rows(needs.layout.num_local, rows)
        result[:num_owned].copy_(rows)
        self._receive(rows, needs, result[num_owned:])
        return result

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Send halo rows to their owners and add."""
        needs = self._needs[exchange]
        num_owned = needs.layout.num_owned
        return self._add(rows, needs, self.result_rows(num_owned, rows).copy_(rows[:num_owned]))

    def _new(self, count: int, like: Tensor) -> Tensor:
        return self._scratch.rows(count, like)


class GlooHaloPlainCalls(GlooTransport):
    """:class:`GlooTransport` without owned rows: new memory for packed and received rows in each call."""

    halo_only = True

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Pack, send, receive halo rows."""
        needs = self._needs[exchange]
        return self._receive(rows, needs, self._result(needs.layout.num_halo, rows))

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Send halo rows to their owners, who add them to their own in place."""
        needs = self._needs[exchange]
        return self._add(rows, needs, rows[: needs.layout.num_owned])

    def _result(self, count: int, like: Tensor) -> Tensor:
        return self._new(count, like)


class GlooHaloCalls(GlooHaloPlainCalls, GlooKeptTransport):
    """:class:`GlooKeptTransport` without owned rows, to compare :class:`~dgcl.bench.transports.HaloCalls` with."""

    def _result(self, count: int, like: Tensor) -> Tensor:
        return self.result_rows(count, like)


class SwapTransport(Baseline):
    """The paper's Swap: after each layer all rows go to host memory and come back from there.

    A rank writes all its rows to the host's store and loads them again; rows that others need are passed on
    from reader to reader (the communicator's plan must be of chains). On CPU ranks host memory is no farther
    away than any other, so this shows the additional copies and the chain, not PCIe.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._store = Scratch()

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Write rows to the store and read them back, own rows first, then along the chains."""
        store = self._store.rows(len(rows), rows)
        return self.planned.expand(store.copy_(rows), exchange)

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Back along the chains, then out to the store and in again."""
        result = self.planned.fold(rows, exchange)
        store = self._store.rows(len(result), result)
        return result.copy_(store.copy_(result))

    def poison(self) -> None:
        """Overwrite free blocks of the pool, and the store."""
        self._store.poison()
        super().poison()


class PaddedTransport(Baseline):
    """An allgather of parts padded to the largest one, which ignores sparsity.

    Every rank gets every row (moved by a plan of our own, so that the difference is in what is sent and not
    in who sends it) and picks the halo out of them.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._scratch = Scratch()
        self._layouts = list(comm.layouts.values())
        counts = comm.control.exchange([layout.num_owned for layout in self._layouts])
        self._padded = [max(column) for column in zip(*counts, strict=True)]
        self._everyone = [_build_allgather(comm, padded) for padded in self._padded]
        self._places = [
            _places_of_halo(comm, layout, padded)
            for layout, padded in zip(self._layouts, self._padded, strict=True)
        ]

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Pad, gather everything, and select the halo rows."""
        layout = self._layouts[exchange]
        num_owned = layout.num_owned
        padded = self._scratch.rows(self._padded[exchange], rows)
        padded[:num_owned].copy_(rows)
        padded[num_owned:].zero_()
        everything = self._everyone[exchange].transport.expand(padded)
        result = self.result_rows(layout.num_local, rows)
        result[:num_owned].copy_(rows)
        torch.index_select(everything, 0, self._places[exchange], out=result[num_owned:])
        return result

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Spread into zeros, reduce and scatter everything."""
        num_owned, everyone = self._layouts[exchange].num_owned, self._everyone[exchange]
        everything = self._scratch.rows(everyone.num_local, rows).zero_()
        everything[:num_owned].copy_(rows[:num_owned])
        everything.index_copy_(0, self._places[exchange], rows[num_owned:])
        return everyone.transport.fold(everything)[:num_owned]

    def poison(self) -> None:
        """Overwrite free blocks of all pools, and the buffers."""
        self._scratch.poison()
        for everyone in self._everyone:
            Baseline(everyone).poison()
        super().poison()

    def close(self) -> None:
        """Also the communicators that gather everything."""
        for everyone in self._everyone:
            everyone.close()
        super().close()


def _build_allgather(comm: Communicator, padded: int) -> Communicator:
    """A communicator whose ranks own ``padded`` rows each and read all of them. Collective."""
    problem = None
    if comm.rank == 0:
        part = np.repeat(np.arange(comm.world_size), padded)
        everything = np.arange(len(part))
        needs = [(rank, everything) for rank in range(comm.world_size)]
        problem = from_needs("padded", part, comm.world_size, needs)
    everyone = dgcl.build_comm_info(
        problem and problem.graph,
        f"uniform{comm.world_size}",
        part=problem and problem.part,
        method="direct",
        timeout=comm.timeout,
    )
    context.communicator = comm
    return everyone


def _places_of_halo(comm: Communicator, layout: Layout, padded: int) -> Tensor:
    """Where each halo row lies among the padded rows of all ranks, as they arrive. Collective."""
    ids, owners = comm.control.exchange(layout.owned_ids), _halo_owners(comm.control, layout)
    halo, places = layout.halo_ids, np.empty(layout.num_halo, np.int64)
    for rank, owned in enumerate(ids):
        mine = owners == rank
        # Rank r owns ids r * padded and up, and its rows arrive in that order, behind this rank's own.
        first = padded * (rank + (rank < comm.rank))
        places[mine] = first + np.searchsorted(owned, halo[mine])
    return torch.from_numpy(places)


def _halo_owners(control: Control, layout: Layout) -> np.ndarray:
    """The owner of each halo row. Collective."""
    halo = layout.halo_ids
    owners = np.full(len(halo), -1)
    for rank, owned in enumerate(control.exchange(layout.owned_ids)):
        owners[np.isin(halo, owned, assume_unique=True)] = rank
    return owners


def _find_needs(comm: Communicator, layout: Layout) -> _Needs:
    """Which owned rows each rank reads, in the order of its halo. Collective.

    Raises:
        ValueError: The halo is not in the order of its owners.
    """
    owned = layout.owned_ids
    wanted = []
    for halo in comm.control.exchange(layout.halo_ids):
        mine = halo[np.isin(halo, owned, assume_unique=True)]
        wanted.append(np.searchsorted(owned, mine))
    owners = _halo_owners(comm.control, layout)
    if (np.diff(owners) < 0).any():
        raise ValueError("method 'gloo' needs a halo in the order of its owners: use a direct plan")
    index = torch.from_numpy(np.concatenate(wanted))
    receives = np.bincount(owners, minlength=comm.world_size).tolist()
    return _Needs(layout, index, [len(rows) for rows in wanted], receives)
