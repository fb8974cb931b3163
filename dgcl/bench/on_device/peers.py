"""Exchange without a plan: rows packed by ``index_select`` and exchanged by ``all_to_all_single``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dgcl.program.exchange import HALO

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from dgcl.communicator import Communicator


class Needs:
    """Which of a rank's rows each other rank reads, for a halo in the order of its owners. Collective.

    Attributes:
        index: Places among the owned rows, by reader.
        sends, receives: ``(P,)`` rows to and from each rank.
    """

    def __init__(self, comm: Communicator) -> None:
        program, world_size = comm.exchanges[HALO].program, comm.world_size
        schedule = program.expand
        if comm.plan.num_stages > 1 or program.num_relay:
            raise ValueError("peers are measured in the numbering of a direct plan")
        self.sends, self.receives = [0] * world_size, [0] * world_size
        pieces = [np.zeros(0, np.int64) for _ in range(world_size)]
        for i, peer in enumerate(schedule.send_peer.tolist()):
            first, count = int(schedule.send_from[i, 0]), int(schedule.send_count[i, 0])
            pieces[peer] = program.send_rows[first : first + count].astype(np.int64)
            self.sends[peer] = count
        for i, peer in enumerate(schedule.recv_peer.tolist()):
            self.receives[peer] = int(schedule.recv_count[i, 0])
        self.index = torch.from_numpy(np.concatenate(pieces)).to(comm.device)
        self.pieces = [torch.from_numpy(piece).to(comm.device) for piece in pieces]


class CollectiveExchange:
    """``all_to_all_single`` on a process group.

    Args:
        comm: Says who needs what.
        needs: Of the rank.
        group: The group; None for the default one.
        through_host: Copy rows to the host and back, for a backend that takes none from the device.
    """

    def __init__(
        self, comm: Communicator, needs: Needs, group: ProcessGroup | None, *, through_host: bool
    ) -> None:
        self._num_owned, self._num_local = comm.num_owned, comm.num_local
        self._needs, self._group, self._through_host = needs, group, through_host

    def expand(self, rows: Tensor) -> Tensor:
        """Pack, send, receive in place."""
        packed = rows.index_select(0, self._needs.index)
        result = rows.new_empty((self._num_local, *rows.shape[1:]))
        result[: self._num_owned].copy_(rows)
        self._exchange(result[self._num_owned :], packed, self._needs.receives, self._needs.sends)
        return result

    def fold(self, rows: Tensor) -> Tensor:
        """Send halo rows to their owners, and add."""
        arrived = rows.new_empty((len(self._needs.index), *rows.shape[1:]))
        halo = rows[self._num_owned :].contiguous()
        self._exchange(arrived, halo, self._needs.sends, self._needs.receives)
        return rows[: self._num_owned].clone().index_add_(0, self._needs.index, arrived)

    def _exchange(self, out: Tensor, given: Tensor, receives: list[int], sends: list[int]) -> None:
        import torch.distributed as dist

        if not self._through_host:
            dist.all_to_all_single(out, given, receives, sends, group=self._group)
            return
        landed = torch.empty(out.shape, dtype=out.dtype)
        dist.all_to_all_single(landed, given.cpu(), receives, sends, group=self._group)
        out.copy_(landed)


def gloo_exchange(comm: Communicator, needs: Needs) -> tuple[CollectiveExchange, str]:
    """The group's own Gloo, and a note where it takes no rows from the device. Collective.

    Raises:
        ValueError: The ranks are no process group.
    """
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() != comm.world_size:
        raise ValueError(
            "gloo: ranks are not the processes of one torch.distributed group; start them as processes"
        )
    problem = ""
    try:
        given = torch.ones(comm.world_size, device=comm.device)
        dist.all_to_all_single(torch.empty_like(given), given)
        if comm.device.type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:120] or "it failed"
    problems = [each for each in comm.control.exchange(problem) if each]
    note = (
        f"Gloo takes no rows of the device ({problems[0]}): copied to the host and back" if problems else ""
    )
    return CollectiveExchange(comm, needs, None, through_host=bool(problems)), note


def nccl_exchange(comm: Communicator, needs: Needs) -> CollectiveExchange:
    """An NCCL group; only where :func:`dgcl.bench.on_device.nccl.try_nccl` has succeeded. Collective."""
    import torch.distributed as dist

    group = dist.new_group(backend="nccl")
    return CollectiveExchange(comm, needs, group, through_host=False)
