"""The control plane: how ranks exchange small Python objects and wait for each other, outside the exchange of rows.

Set-up, dispatch and collection of rows go through it, and small sums; rows inside a layer never do. One interface,
three kinds of ranks: processes of a ``torch.distributed`` group (`group_control`), threads of one process
(`thread_control`), and a single rank that needs neither. Kinds differ in one method, ``_swap``.

Called by `context`, `dgcl/communicator`, `dgcl/build`, `dgcl/transport/connect` and others. Free to change while all
kinds give the same results and name ranks that have left (`tests/dgcl/ranks/test_control.py`), and different calls of
ranks are an error on all (`tests/dgcl/faults/test_odd_rank.py`).
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from dgcl.errors import CommError, DisagreementError, PeerLostError

T = TypeVar("T")

OWN_THREADS = "dgcl "  # how names of the library's threads begin

_MAKE_ALL = (
    "Every rank must make the same calls in the same order, and stop early or skip a step by a number that all have:"
    " a loss or accuracy of dgcl.nn, dgcl.nn.global_sum(x), dgcl.collect(x, dst=None)"
)


# **Which call a rank is in.** Every message says which call it belongs to, so ranks that make different calls
# hear of both. And a rank that waits for others in a call of the user's (:meth:`Control.collective`) informs its
# communicators, which publish it to their peers: one of these that waits for the rank in an exchange of rows sees
# at once that it will never come.


class Call(NamedTuple):
    """What a message belongs to.

    Attributes:
        verb: How the control plane was used: "exchange", "gather", ...
        number: How many named collectives this rank has begun.
        name: The one that it is in; "" for none.
    """

    verb: str
    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (control call {self.number})" if self.name else self.verb


def different_calls(mine: Call, rank: int, theirs: Call, peer: int) -> DisagreementError:
    """The error for two ranks that make different calls."""
    here, there = str(mine), str(theirs)
    if here == there:
        here, there = f"{mine.verb} of {here}", f"{theirs.verb} of {there}"
    return DisagreementError(
        f"ranks make different calls: rank {rank} is in {here}; rank {peer} is in {there}. {_MAKE_ALL}"
    )


class Listener(Protocol):
    """Who publishes to this rank's peers which named collective it waits in."""

    def enter_collective(self, number: int, name: str, alone: bool) -> None:
        """It is in this one; ``alone``: no other thread of its process makes calls meanwhile."""

    def leave_collective(self) -> None:
        """It is in none any more."""

    def lost(self, num_calls: int) -> tuple[int, type[CommError], str] | None:
        """A rank that left the communicator before its call of this number here, its error, and why ("rank 1 ...")."""


class Control:
    """What set-up needs of the ranks. Every method but :meth:`leave` is collective.

    All ranks make the same calls, in the same order. Kinds of ranks differ in :meth:`_swap` alone.

    Attributes:
        rank, world_size: This rank, and the number of ranks.
        listeners: Told of every named collective.
        num_collectives: Named collectives that this rank has begun.
        num_calls: Calls of any kind that it has begun here; the same for all ranks that are in one.
        has_group: Whether ranks are processes of a ``torch.distributed`` group, which can carry rows, too.
        threads_of_ranks: How many threads of this process are ranks or wait for them.
        copies: How sums over copies of nodes are exchanged; here, since communicators have their control plane.
        limit: Seconds that ranks wait for one of which they hear nothing, once a communicator has connected them: the
            timeout of the last one. One that is in a call of set-up and works is heard of.
    """

    has_group = False
    threads_of_ranks = 1
    copies: Any = None
    limit = math.inf

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.listeners: WeakSet[Listener] = WeakSet()
        self.num_collectives = self.num_calls = 0
        self._of: Listener | None = None  # the communicator whose collective this rank is in
        self._timeout = math.inf  # of each wait there
        self._name = ""
        self._callers: set[int] = set()

    @contextmanager
    def collective(self, name: str, of: Listener | None = None, timeout: float = math.inf) -> Iterator[None]:
        """Give the calls inside a name, under which messages mention them; the outermost name stands.

        Args:
            name: The name.
            of: The communicator that they belong to: they fail at once when a rank has left it.
            timeout: Seconds that ranks wait for each other there; infinity: :attr:`limit`.
        """
        if self._name:
            yield
            return
        self._name, self._of, self._timeout = name, of, timeout
        self.num_collectives += 1
        try:
            if self.world_size > 1 and self.listeners:
                alone = self.has_one_caller()
                for listener in list(self.listeners):
                    listener.enter_collective(self.num_collectives, name, alone)
            yield
        finally:
            self._name, self._of, self._timeout = "", None, math.inf
            for listener in list(self.listeners):
                listener.leave_collective()

    def limit_waits(self, timeout: Any) -> None:
        """Wait no longer than a new communicator's timeout from now on, if ranks are connected already."""
        if self.limit < math.inf and isinstance(timeout, (int, float)) and timeout > 0:
            self.limit = timeout

    @property
    def _seconds(self) -> float:
        """How long to wait now for a rank of which nothing is heard."""
        return self.limit if self._timeout == math.inf else self._timeout

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within this, in set-up, a rank that dies is noticed at once, whoever waits for whom. Not collective."""
        yield

    def unless_lost(self, function: Callable[[], T]) -> T:
        """``function()``, which takes long on this rank alone.

        Raises:
            PeerLostError: A rank has died meanwhile, where this is watched.
        """
        return function()

    def has_one_caller(self) -> bool:
        """Whether only this thread of the rank has ever made a call here, or waited for rows."""
        self._callers.add(threading.get_ident())
        return len(self._callers) == 1

    def only_ranks_run(self) -> bool:
        """Whether this process has no threads but those that are ranks, and one that waits for them.

        The library's own threads, known by their names, make no calls.
        """
        others = [thread for thread in threading.enumerate() if not thread.name.startswith(OWN_THREADS)]
        return len(others) <= self.threads_of_ranks

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order.

        Raises:
            PeerLostError, CommTimeoutError: As of all methods: a rank is gone, or late; by its name.
            DisagreementError: As of all methods: a rank makes another call.
        """
        got = self._swap(self._call("exchange"), dict.fromkeys(self._others(), value), self._others())
        return self._in_order(value, got)

    def all_to_all(self, values: Sequence[Any]) -> list[Any]:
        """From every rank the entry of its list that is for this rank, in rank order."""
        outgoing = {peer: values[peer] for peer in self._others()}
        return self._in_order(
            values[self.rank], self._swap(self._call("all_to_all"), outgoing, self._others())
        )

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """The value of rank ``src``."""
        if self.rank != src:
            return self._swap(self._call("broadcast"), {}, [src])[src]
        self._swap(self._call("broadcast"), dict.fromkeys(self._others(), value), [])
        return value

    def scatter(self, values: list[Any] | None, src: int = 0) -> Any:
        """This rank's entry of the list that rank ``src`` gives."""
        if self.rank != src:
            return self._swap(self._call("scatter"), {}, [src])[src]
        assert values is not None
        assert len(values) == self.world_size
        self._swap(self._call("scatter"), {peer: values[peer] for peer in self._others()}, [])
        return values[src]

    def gather(self, value: Any, dst: int = 0) -> list[Any] | None:
        """Every rank's value, in rank order, on rank ``dst``; None elsewhere."""
        if self.rank != dst:
            self._swap(self._call("gather"), {dst: value}, [])
            return None
        return self._in_order(value, self._swap(self._call("gather"), {}, self._others()))

    def barrier(self) -> None:
        """Return when every rank has called."""
        self.exchange(None)

    def lost(self) -> CommError | None:
        """The error for ranks that wait for rows of this one, which has lost another rank; None if it has not."""
        return None

    def leave(self, why: str, kind: type[CommError] = PeerLostError) -> None:
        """Take part no more: ranks that wait for this one raise at once. Not collective.

        Args:
            why: Completes a sentence about this rank.
            kind: The error that the others raise.
        """

    def _swap(self, call: Call, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        """Send an object to each of these ranks, and receive one from each of those; never this rank."""
        raise NotImplementedError

    def _call(self, verb: str) -> Call:
        self._callers.add(threading.get_ident())
        self.num_calls += 1
        return Call(verb, self.num_collectives, self._name)

    def _others(self) -> list[int]:
        return [peer for peer in range(self.world_size) if peer != self.rank]

    def _in_order(self, own: Any, got: dict[int, Any]) -> list[Any]:
        return [own if peer == self.rank else got[peer] for peer in range(self.world_size)]


class SingleControl(Control):
    """One rank alone: it waits for nobody."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _swap(self, call: Call, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        return {}
