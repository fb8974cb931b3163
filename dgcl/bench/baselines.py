"""What people do without a plan, behind the same interface and in the same numbering of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import dgcl
from dgcl.bench.exchange import PlannedExchange, Scratch, poison_pool, result_rows
from dgcl.bench.problems import from_needs
from dgcl.ranks.context import context

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


class GlooExchange:
    """``torch.distributed.all_to_all_single`` of packed rows: what one would write today, in plain torch.

    Rows are packed with ``index_select`` and sent with uneven splits; they arrive in the order of the halo, because
    that of a peer-to-peer plan is numbered by owner, and are put behind the owned rows. The way back adds with
    ``index_add_``.

    Raises:
        ValueError: The ranks are no process group, or the halo is not numbered by owner.
    """

    def __init__(self, comm: Communicator) -> None:
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() != comm.world_size:
            raise ValueError(
                "method 'gloo' needs ranks that are the processes of one torch.distributed group, not threads"
            )
        self._comm, self._scratch = comm, Scratch()
        wanted, owners = _who_wants_what(comm)
        if (np.diff(owners) < 0).any():
            raise ValueError("method 'gloo' needs a halo in the order of its owners: use a direct plan")
        self._index = torch.from_numpy(np.concatenate(wanted))
        self._send_splits = [len(rows) for rows in wanted]
        self._receive_splits = np.bincount(owners, minlength=comm.world_size).tolist()

    def expand(self, rows: Tensor) -> Tensor:
        """Pack, send, receive, concatenate."""
        packed = rows.index_select(0, self._index)
        halo = rows.new_empty(self._comm.num_halo, *rows.shape[1:])
        self._send(packed, halo)
        return torch.cat([rows, halo])

    def fold(self, rows: Tensor) -> Tensor:
        """Send halo rows to their owners and add."""
        num_owned = self._comm.num_owned
        arrived = rows.new_empty(len(self._index), *rows.shape[1:])
        self._send_back(rows[num_owned:].contiguous(), arrived)
        return rows[:num_owned].clone().index_add_(0, self._index, arrived)

    def _send(self, packed: Tensor, halo: Tensor) -> None:
        import torch.distributed as dist

        dist.all_to_all_single(halo, packed, self._receive_splits, self._send_splits)

    def _send_back(self, halo: Tensor, arrived: Tensor) -> None:
        import torch.distributed as dist

        dist.all_to_all_single(arrived, halo, self._send_splits, self._receive_splits)

    def poison(self) -> None:
        """The pool and the buffers."""
        self._scratch.poison()
        poison_pool(self._comm)

    def close(self) -> None:
        """Nothing of its own."""


class GlooKeptExchange(GlooExchange):
    """:class:`GlooExchange` as good as it can be made with what this library has and a user has not: no call pays for
    new memory, because buffers are kept and results come out of the communicator's pool, and rows arrive in place."""

    def expand(self, rows: Tensor) -> Tensor:
        """Pack, send, receive in place."""
        num_owned = self._comm.num_owned
        packed = self._scratch.rows(len(self._index), rows)
        torch.index_select(rows, 0, self._index, out=packed)
        result = result_rows(self._comm, self._comm.num_local, rows)
        result[:num_owned].copy_(rows)
        self._send(packed, result[num_owned:])
        return result

    def fold(self, rows: Tensor) -> Tensor:
        """Send halo rows to their owners and add."""
        num_owned = self._comm.num_owned
        arrived = self._scratch.rows(len(self._index), rows)
        self._send_back(rows[num_owned:].contiguous(), arrived)
        result = result_rows(self._comm, num_owned, rows)
        result.copy_(rows[:num_owned])
        return result.index_add_(0, self._index, arrived)


class GlooHaloExchange(GlooKeptExchange):
    """:class:`GlooKeptExchange` without owned rows: what :class:`~dgcl.bench.exchange.HaloExchange` is held
    against."""

    halo_only = True

    def expand(self, rows: Tensor) -> Tensor:
        """Pack, send, receive halo rows."""
        packed = self._scratch.rows(len(self._index), rows)
        torch.index_select(rows, 0, self._index, out=packed)
        result = result_rows(self._comm, self._comm.num_halo, rows)
        self._send(packed, result)
        return result

    def fold(self, rows: Tensor) -> Tensor:
        """Send halo rows to their owners, who add them to their own in place."""
        num_owned = self._comm.num_owned
        arrived = self._scratch.rows(len(self._index), rows)
        self._send_back(rows[num_owned:], arrived)
        return rows[:num_owned].index_add_(0, self._index, arrived)


class GlooHaloPlainExchange(GlooExchange):
    """:class:`GlooExchange` without owned rows: new memory for packed and received rows in each call."""

    halo_only = True

    def expand(self, rows: Tensor) -> Tensor:
        """Pack, send, receive halo rows."""
        halo = rows.new_empty(self._comm.num_halo, *rows.shape[1:])
        self._send(rows.index_select(0, self._index), halo)
        return halo

    def fold(self, rows: Tensor) -> Tensor:
        """Send halo rows to their owners, who add them to their own in place."""
        num_owned = self._comm.num_owned
        arrived = rows.new_empty(len(self._index), *rows.shape[1:])
        self._send_back(rows[num_owned:], arrived)
        return rows[:num_owned].index_add_(0, self._index, arrived)


class SwapExchange:
    """The paper's Swap: after each layer all rows go to host memory and come back from there.

    A rank writes all its rows to the host's store and loads them again; rows that others need are passed on
    from reader to reader (the communicator's plan must be of chains). On CPU ranks host memory is no farther
    away than any other, so this shows the additional copies and the chain, not PCIe.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._planned, self._store = comm, PlannedExchange(comm), Scratch()

    def expand(self, rows: Tensor) -> Tensor:
        """Out to the store; in again, own rows first, then along the chains."""
        store = self._store.rows(len(rows), rows)
        return self._planned.expand(store.copy_(rows))

    def fold(self, rows: Tensor) -> Tensor:
        """Back along the chains, then out to the store and in again."""
        result = self._planned.fold(rows)
        store = self._store.rows(len(result), result)
        return result.copy_(store.copy_(result))

    def poison(self) -> None:
        """The pool and the store."""
        self._store.poison()
        self._planned.poison()

    def close(self) -> None:
        """Nothing of its own."""


class PaddedExchange:
    """An allgather of parts padded to the largest one: what a program does that knows no sparsity.

    Every rank gets every row (moved by a plan of our own, so that the difference is in what is sent and not
    in who sends it) and picks the halo out of them.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._scratch = comm, Scratch()
        counts = np.array(comm.control.exchange(comm.num_owned))
        self._padded = int(counts.max())
        self._everyone = self._build_allgather()
        ids, owners = comm.control.exchange(comm.owned_ids.numpy()), _halo_owners(comm)
        halo, place = comm.halo_ids.numpy(), np.empty(comm.num_halo, np.int64)
        for rank, owned in enumerate(ids):
            mine = owners == rank
            # In the padded world rank r owns ids r * padded and up, and its rows arrive in that order.
            first = self._padded * (rank + (rank < comm.rank))
            place[mine] = first + np.searchsorted(owned, halo[mine])
        self._place = torch.from_numpy(place)

    def _build_allgather(self) -> Communicator:
        comm, world_size = self._comm, self._comm.world_size
        problem = None
        if comm.rank == 0:
            part = np.repeat(np.arange(world_size), self._padded)
            everything = np.arange(len(part))
            problem = from_needs("padded", part, world_size, [(r, everything) for r in range(world_size)])
        everyone = dgcl.build_comm_info(
            problem and problem.graph,
            f"uniform{world_size}",
            part=problem and problem.part,
            method="direct",
            timeout=comm.timeout,
        )
        context.communicator = comm
        return everyone

    def expand(self, rows: Tensor) -> Tensor:
        """Pad, gather everything, pick."""
        comm, num_owned = self._comm, self._comm.num_owned
        padded = self._scratch.rows(self._padded, rows)
        padded[:num_owned].copy_(rows)
        padded[num_owned:].zero_()
        everything = self._everyone._expand_planned(padded)
        result = result_rows(comm, comm.num_local, rows)
        result[:num_owned].copy_(rows)
        torch.index_select(everything, 0, self._place, out=result[num_owned:])
        return result

    def fold(self, rows: Tensor) -> Tensor:
        """Spread into zeros, reduce and scatter everything."""
        num_owned = self._comm.num_owned
        everything = self._scratch.rows(self._everyone.num_local, rows).zero_()
        everything[:num_owned].copy_(rows[:num_owned])
        everything.index_copy_(0, self._place, rows[num_owned:])
        return self._everyone._fold_planned(everything)[:num_owned]

    def poison(self) -> None:
        """Both pools and the buffers."""
        self._scratch.poison()
        poison_pool(self._everyone)
        poison_pool(self._comm)

    def close(self) -> None:
        """The communicator behind it."""
        self._everyone.close()


def _halo_owners(comm: Communicator) -> np.ndarray:
    """The owner of each halo row. Collective."""
    halo = comm.halo_ids.numpy()
    owners = np.full(len(halo), -1)
    for rank, owned in enumerate(comm.control.exchange(comm.owned_ids.numpy())):
        owners[np.isin(halo, owned, assume_unique=True)] = rank
    return owners


def _who_wants_what(comm: Communicator) -> tuple[list[np.ndarray], np.ndarray]:
    """For each rank the places among this rank's owned rows that it reads, in the order of its halo; and the
    owners of this rank's halo rows. Collective."""
    owned = comm.owned_ids.numpy()
    wanted = []
    for halo in comm.control.exchange(comm.halo_ids.numpy()):
        mine = halo[np.isin(halo, owned, assume_unique=True)]
        wanted.append(np.searchsorted(owned, mine))
    return wanted, _halo_owners(comm)
