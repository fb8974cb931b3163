"""Exchanges halo rows without a plan: packs them and calls ``all_to_all_single`` of ``torch.distributed`` (Gloo).

It is what plans are compared with. Halo rows arrive sorted by owner, so it needs the row order of a direct plan, which
is the same. ``build_comm_info`` here is that of dgcl with these names, too, as its ``method``.

Called by `measure`, and by users and ``dgcl bench`` as names of ``dgcl.bench``. Free to change while an expand has the
owners' bits, a fold adds exactly, and gradients are those of a plan (`tests/dgcl/bench/test_exchanges.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import dgcl
from dgcl.bench.patterns import POISON
from dgcl.bench.transports import Baseline
from dgcl.planner.methods import METHODS as PLANNERS
from dgcl.program.row_layout import Layout
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

#: Ways to exchange rows that are no plans, by name.
BASELINES = {"gloo": "torch.distributed all_to_all_single of packed rows"}

#: All that ``method`` of :func:`build_comm_info` may be.
METHODS = (*PLANNERS, *BASELINES)


def build_comm_info(
    graph: Any = None, topology: str | Topology = "auto", *, method: str = "auto", **options: Any
) -> Communicator:
    """:func:`dgcl.build_comm_info` with the baselines among its methods. Collective.

    The communicator trains models exactly as any other.

    Args:
        graph, topology, options: As there.
        method: A planner, or one of :data:`BASELINES`.

    Raises:
        ValueError, TypeError, CommError: As there; and for a baseline between ranks that are threads.
    """
    check_choice(method, "method", METHODS)
    if method not in BASELINES:
        return dgcl.build_comm_info(graph, topology, method=method, **options)
    comm = dgcl.build_comm_info(graph, topology, method="direct", **options)
    comm.use_transport(AllToAll(comm))
    return comm


class AllToAll(Baseline):
    """``torch.distributed.all_to_all_single`` of packed rows: the usual code in plain torch.

    Rows are packed with ``index_select`` and sent with uneven splits; they arrive in the order of the halo, because
    that of a direct plan is numbered by owner. The way back adds with ``index_add_``. Construction is collective.

    Args:
        comm: A communicator with a direct plan.
        halo_only: Whether halo rows go alone, as by :class:`~dgcl.bench.transports.HaloCalls`, and no call pays for
            new memory: buffers are kept, and results come out of the communicator's pool. Users have none of this.

    Raises:
        ValueError: The ranks are no process group, or a halo is not numbered by owner.
    """

    def __init__(self, comm: Communicator, *, halo_only: bool = False) -> None:
        if not dist.is_initialized() or dist.get_world_size() != comm.world_size:
            raise ValueError(
                "method 'gloo' needs ranks that are the processes of one torch.distributed group, not threads"
            )
        super().__init__(comm)
        self.halo_only = halo_only
        self._buffers: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}
        self._needs = [_find_needs(comm, layout) for layout in comm.layouts.values()]

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Pack, send, receive, and put behind the owned rows."""
        index, sends, receives = self._needs[exchange]
        packed = torch.index_select(rows, 0, index, out=self._buffer(len(index), rows))
        shape = (sum(receives), *rows.shape[1:])
        halo = self.planned.empty(shape, rows.dtype) if self.halo_only else rows.new_empty(shape)
        dist.all_to_all_single(halo, packed, receives, sends)
        return halo if self.halo_only else torch.cat([rows, halo])

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        """Send halo rows to their owners and add."""
        index, sends, receives = self._needs[exchange]
        own, halo = rows.split([len(rows) - sum(receives), sum(receives)])
        arrived = self._buffer(len(index), rows)
        dist.all_to_all_single(arrived, halo.contiguous(), sends, receives)
        if not self.halo_only:
            own = own.clone()
        return own.index_add_(0, index, arrived)

    def _buffer(self, count: int, like: Tensor) -> Tensor:
        shape = (count, *like.shape[1:])
        if not self.halo_only:
            return like.new_empty(shape)
        if (shape, like.dtype) not in self._buffers:
            self._buffers[shape, like.dtype] = like.new_empty(shape)
        return self._buffers[shape, like.dtype]

    def poison(self) -> None:
        """Overwrite free blocks of the pool, and the buffers."""
        super().poison()
        for buffer in self._buffers.values():
            buffer.view(torch.uint8).fill_(POISON)


def _find_needs(comm: Communicator, layout: Layout) -> tuple[Tensor, list[int], list[int]]:
    """Places of owned rows by reader, and the numbers of rows to and from each rank. Collective."""
    owned, halo = layout.owned_ids, layout.halo_ids
    others = comm.control.exchange((owned, halo))
    sends = [np.searchsorted(owned, ids[np.isin(ids, owned)]) for _, ids in others]
    receives = [halo[np.isin(halo, ids)] for ids, _ in others]
    if not np.array_equal(np.concatenate(receives), halo):
        raise ValueError("method 'gloo' needs a halo in the order of its owners: use a direct plan")
    index = torch.from_numpy(np.concatenate(sends)).to(comm.device)
    return index, [len(rows) for rows in sends], [len(rows) for rows in receives]
