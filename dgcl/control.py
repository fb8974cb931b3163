"""The control plane: how ranks exchange small Python objects and meet, outside the data path.

Set-up, dispatch and collection of rows go through here; rows inside a layer never do. One interface, three
kinds of ranks: processes of a ``torch.distributed`` group, threads of one process, and a single rank that
needs neither.

Objects travel pickled between the processes of one job; nothing is ever unpickled that comes from elsewhere.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from dgcl.errors import CommError, CommTimeoutError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class Control(Protocol):
    """What set-up needs of the ranks. Every method is collective: all ranks call it, in the same order."""

    rank: int
    world_size: int

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value of rank ``src``."""

    def scatter(self, values: list[Any] | None, src: int = 0) -> Any:
        """This rank's entry of the list that rank ``src`` gives."""

    def gather(self, value: Any, dst: int = 0) -> list[Any] | None:
        """Every rank's value, in rank order, on rank ``dst``; None elsewhere."""

    def barrier(self) -> None:
        """Return when every rank has called."""


def all_reduce_sum(control: Control, tensor: Tensor) -> Tensor:
    """The sum of a tensor over the ranks, added in rank order: bitwise the same on every rank and in every
    run."""
    import torch

    parts = control.exchange(tensor.detach().cpu().contiguous())
    total = parts[0].clone()
    for part in parts[1:]:
        if part.shape != total.shape or part.dtype != total.dtype:
            raise CommError(
                f"tensor: ranks disagree: {tuple(total.shape)} {total.dtype} on rank 0, {tuple(part.shape)} "
                f"{part.dtype}"
            )
        total += part
    return total.to(tensor.device) if tensor.device.type != "cpu" else torch.as_tensor(total)


class SingleControl:
    """One rank alone."""

    rank = 0
    world_size = 1

    def exchange(self, value: Any) -> list[Any]:
        """[value]."""
        return [value]

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value."""
        return value

    def scatter(self, values: list[Any] | None, src: int = 0) -> Any:
        """The only entry."""
        assert values is not None
        return values[0]

    def gather(self, value: Any, dst: int = 0) -> list[Any] | None:
        """[value]."""
        return [value]

    def barrier(self) -> None:
        """Nothing to wait for."""


class ThreadMeeting:
    """What the threads of one world share; give each a :class:`ThreadControl` on it."""

    def __init__(self, world_size: int, timeout: float) -> None:
        self.world_size = world_size
        self.timeout = timeout
        self.slots: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size)


class ThreadControl:
    """A rank that is a thread; values are passed by reference."""

    def __init__(self, meeting: ThreadMeeting, rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.world_size = meeting.world_size

    def barrier(self) -> None:
        """Wait for all threads; an error if one of them has left or the deadline passes."""
        try:
            self._meeting.barrier.wait(self._meeting.timeout)
        except threading.BrokenBarrierError:
            raise CommTimeoutError(
                f"rank {self.rank}: the ranks did not meet: one has stopped, or {self._meeting.timeout} s "
                f"have passed"
            ) from None

    def exchange(self, value: Any) -> list[Any]:
        """Every thread's value."""
        self._meeting.slots[self.rank] = value
        self.barrier()
        values = list(self._meeting.slots)
        self.barrier()
        return values

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value of thread ``src``."""
        return self.exchange(value)[src]

    def scatter(self, values: list[Any] | None, src: int = 0) -> Any:
        """This thread's entry of the list that thread ``src`` gives."""
        every = self.exchange(values)[src]
        if every is None or len(every) != self.world_size:
            raise ValueError(f"values: rank {src} must give one entry per rank")
        return every[self.rank]

    def gather(self, value: Any, dst: int = 0) -> list[Any] | None:
        """Every thread's value, on thread ``dst``."""
        values = self.exchange(value)
        return values if self.rank == dst else None

    def abort(self) -> None:
        """This thread leaves for good: let nobody wait for it."""
        self._meeting.barrier.abort()


class GroupControl:
    """The ranks of a ``torch.distributed`` process group.

    Makes a Gloo subgroup of its own with the same ranks, so that the user's group never carries our traffic
    and may have any backend. Collective over the group.
    """

    def __init__(self, group: ProcessGroup | None, timeout: float) -> None:
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(group) if group is not None else None
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("group: this process is not a member; call dgcl.init only on the group's ranks")
        self.world_size = dist.get_world_size(group)
        self._timeout = timeout
        self._ranks = ranks if ranks is not None else list(range(self.world_size))
        self._group = dist.new_group(
            self._ranks,
            backend="gloo",
            timeout=timedelta(seconds=timeout),
            use_local_synchronization=group is not None,
        )

    def _guarded(self, verb: str, run: Any) -> None:
        try:
            run()
        except RuntimeError as error:
            raise CommError(
                f"rank {self.rank}: {verb} over the control group failed, a rank is gone or late: {error}"
            ) from error

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        self._guarded("exchange", lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value of rank ``src``."""
        import torch.distributed as dist

        box = [value]
        self._guarded(
            "broadcast", lambda: dist.broadcast_object_list(box, src=self._ranks[src], group=self._group)
        )
        return box[0]

    def scatter(self, values: list[Any] | None, src: int = 0) -> Any:
        """This rank's entry of the list that rank ``src`` gives."""
        import torch.distributed as dist

        box: list[Any] = [None]
        given = values if self.rank == src else None
        self._guarded(
            "scatter",
            lambda: dist.scatter_object_list(box, given, src=self._ranks[src], group=self._group),
        )
        return box[0]

    def gather(self, value: Any, dst: int = 0) -> list[Any] | None:
        """Every rank's value, on rank ``dst``."""
        import torch.distributed as dist

        values: list[Any] | None = [None] * self.world_size if self.rank == dst else None
        self._guarded(
            "gather", lambda: dist.gather_object(value, values, dst=self._ranks[dst], group=self._group)
        )
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        import torch.distributed as dist

        self._guarded("barrier", lambda: dist.barrier(group=self._group))
