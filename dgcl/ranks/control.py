"""The control plane: how ranks exchange small Python objects and meet, outside the data path.

Set-up, dispatch and collection of rows go through here; rows inside a layer never do. One interface, three
kinds of ranks: processes of a ``torch.distributed`` group, threads of one process, and a single rank that
needs neither.

Objects travel pickled between the processes of one job; nothing is ever unpickled that comes from elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Store

T = TypeVar("T")

_A_LITTLE: Final = 2.0  # seconds beyond a deadline, for torch to name it


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

    def leave(self, why: str) -> None:
        """Take part no more: ranks that wait for this one raise at once. Not collective; ``why`` completes a
        sentence about this rank."""


def can_use_network(control: Control) -> bool:
    """Whether ranks can send rows through ``torch.distributed``: they are processes of a group."""
    return isinstance(control, GroupControl)


def all_reduce_sum(control: Control, tensor: Tensor) -> Tensor:
    """The sum of a tensor over the ranks, added in rank order: bitwise the same on every rank and in every
    run."""
    import torch

    # A copy: ranks that are threads read each other's memory, and the caller may soon write to it.
    parts = control.exchange(tensor.detach().to("cpu", copy=True).contiguous())
    total = parts[0].clone()
    for part in parts[1:]:
        if part.shape != total.shape or part.dtype != total.dtype:
            raise DisagreementError(
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

    def leave(self, why: str) -> None:
        """Nobody to tell."""


class ThreadMeeting:
    """Where the threads of one world meet; give each a :class:`ThreadControl` on it.

    Args:
        world_size: How many threads.
        timeout: Seconds that they wait for each other.
    """

    def __init__(self, world_size: int, timeout: float) -> None:
        self.world_size, self.timeout = world_size, timeout
        self._changed = threading.Condition()
        self._round = 0
        self._given: dict[int, Any] = {}
        self._values: list[Any] = []  # of the last round that was complete
        self._left: dict[int, str] = {}

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Every thread's value, once all have given theirs."""
        with self._changed:
            mine = self._round
            if not self._left:
                self._given[rank] = value
            if len(self._given) == self.world_size:
                self._values = [self._given[other] for other in range(self.world_size)]
                self._given = {}
                self._round += 1
                self._changed.notify_all()
            elif not self._changed.wait_for(lambda: self._round > mine or bool(self._left), self.timeout):
                missing = [other for other in range(self.world_size) if other not in self._given]
                self._left[rank] = "has given up waiting"
                self._changed.notify_all()
                raise CommTimeoutError(
                    f"rank {rank}: ranks {missing} have not come to meet within {self.timeout:g} s"
                )
            if self._round == mine:
                other, why = next(iter(self._left.items()))
                raise PeerLostError(f"rank {rank}: the ranks cannot meet: rank {other} {why}")
            # Nobody can complete the next round before this thread takes part in it, so these values stay.
            return list(self._values)

    def leave(self, rank: int, why: str) -> None:
        """Thread ``rank`` will not come again; ``why`` completes a sentence about it."""
        with self._changed:
            self._left.setdefault(rank, why)
            self._changed.notify_all()


class ThreadControl:
    """A rank that is a thread; values are passed by reference."""

    def __init__(self, meeting: ThreadMeeting, rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.world_size = meeting.world_size

    def barrier(self) -> None:
        """Wait for all threads."""
        self.exchange(None)

    def leave(self, why: str) -> None:
        """Take part no more."""
        self._meeting.leave(self.rank, why)

    def exchange(self, value: Any) -> list[Any]:
        """Every thread's value.

        Raises:
            PeerLostError: A thread has left.
            CommTimeoutError: The deadline has passed.
        """
        return self._meeting.exchange(self.rank, value)

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


class GroupControl:
    """The ranks of a ``torch.distributed`` process group.

    Makes a Gloo subgroup of its own with the same ranks, so that the user's group never carries our traffic
    and may have any backend. Collective over the group.
    """

    def __init__(self, group: ProcessGroup | None, timeout: float) -> None:
        import torch.distributed as dist

        from dgcl.ranks.abort_reasons import Farewells
        from dgcl.ranks.messages import GroupMessages

        ranks = dist.get_process_group_ranks(group) if group is not None else None
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("group: this process is not a member; call dgcl.init only on the group's ranks")
        self.world_size = dist.get_world_size(group)
        self._timeout = timeout
        self._ranks = ranks if ranks is not None else list(range(self.world_size))
        self._is_part = self.world_size < dist.get_world_size()
        self._group = group
        self._store: Store | None = None  # what this control plane has of the ranks' store
        made, self._store = self._make_group("dgcl.init")
        farewells = None if self._store is None else Farewells(dist.PrefixStore("farewells", self._store))
        self._messages = GroupMessages(made, self.rank, farewells)

    @property
    def timeout(self) -> float:
        """Seconds that ranks wait for each other in set-up."""
        return self._timeout

    @property
    def is_closed(self) -> bool:
        """Whether it can carry nothing any more: a rank has left."""
        return self._messages.is_closed

    def anew(self, timeout: float) -> GroupControl:
        """A fresh one of the same ranks. Collective."""
        return GroupControl(self._group, timeout)

    def new_group(self) -> ProcessGroup:
        """Another Gloo group of the same ranks, in the same order. Collective over them, and only them.

        Raises:
            CommError: A rank has died, or has not come within the timeout.
        """
        return self._make_group("the network between machines")[0]

    def next_store(self) -> Store | None:
        """A part of the ranks' store, for a group of another kind; None where torch does not show it. Collective.

        Raises:
            CommError: As of :meth:`new_group`.
        """
        return self._meet("a group of another kind", lambda store: store)

    def _make_group(self, purpose: str) -> tuple[ProcessGroup, Store | None]:
        """A group, and what it has of the ranks' store."""
        from dgcl.ranks.groups import make_group

        def make(store: Store | None) -> tuple[ProcessGroup, Store | None]:
            group = make_group(self._ranks, self.rank, store, self._timeout, is_part=self._is_part)
            return group, store

        return self._meet(purpose, make)

    def _meet(self, purpose: str, make: Callable[[Store | None], T]) -> T:
        """What is made of a part of the store that this meeting of the ranks has for itself."""
        from dgcl.ranks.groups import in_time, next_store

        given_up = threading.Event()
        they = f"rank {self.rank}: the {self.world_size} ranks cannot connect to each other"
        try:
            return in_time(
                lambda: make(
                    next_store(self._ranks, self.rank, purpose, self._timeout, given_up, self._store)
                ),
                self._timeout + _A_LITTLE,
            )
        except CommError as error:
            raise type(error)(f"{they}: {error}") from None
        except RuntimeError as error:
            text = str(error).split(". This is typically", 1)[0]
            raise CommError(
                f"{they}: one has died, or has not come to {purpose} within {self._timeout:g} s, or cannot be"
                f" reached ({text})"
            ) from None
        finally:
            given_up.set()

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value.

        Raises:
            PeerLostError, CommTimeoutError: As of all methods: a rank is gone, or late; by its name.
        """
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        got = self._messages.swap("exchange", dict.fromkeys(others, value), others)
        return [value if peer == self.rank else got[peer] for peer in range(self.world_size)]

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value of rank ``src``."""
        return self.scatter([value] * self.world_size, src)

    def scatter(self, values: list[Any] | None, src: int = 0) -> Any:
        """This rank's entry of the list that rank ``src`` gives."""
        if self.rank != src:
            return self._messages.swap("scatter", {}, [src])[src]
        if values is None or len(values) != self.world_size:
            raise ValueError(f"values: rank {src} must give one entry per rank")
        outgoing = {peer: given for peer, given in enumerate(values) if peer != src}
        self._messages.swap("scatter", outgoing, [])
        return values[src]

    def gather(self, value: Any, dst: int = 0) -> list[Any] | None:
        """Every rank's value, in rank order, on rank ``dst``."""
        if self.rank != dst:
            self._messages.swap("gather", {dst: value}, [])
            return None
        others = [peer for peer in range(self.world_size) if peer != dst]
        got = self._messages.swap("gather", {}, others)
        return [value if peer == dst else got[peer] for peer in range(self.world_size)]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.exchange(None)

    def leave(self, why: str) -> None:
        """Take part no more; ranks that wait for this one hear of it at once."""
        self._messages.leave(why)
