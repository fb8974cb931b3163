"""Sends Python objects between the ranks of a Gloo group, directly from each to each.

The object collectives of ``torch.distributed`` pass messages round a ring: when a rank dies, its neighbours hear of it,
and all others wait for the timeout. Here a rank waits on the connection to the very rank that it needs, which breaks at
once; whoever has heard closes its own, so that all hear in turn, and find why in the `abort_reasons`. Objects are
pickled; nothing is unpickled that did not come over a connection of this group.

Called by `group_control`. Free to change while values arrive (`tests/dgcl/ranks/test_control.py`), and the rank that
died, and not one that waits for it, is named by all in time (`tests/dgcl/ranks/test_watch.py`).
"""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from dgcl.errors import CommError, CommTimeoutError, DisagreementError, PeerLostError
from dgcl.ranks.abort_reasons import AbortReason, AbortReasons
from dgcl.ranks.control import Call, different_calls
from dgcl.ranks.tensors import untransformed
from dgcl.ranks.torch_private import gloo_timed_out

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_TAG = 0
_NEVER = 3  # a tag that is never sent
_SMALL = 312  # bytes of an object that travels in one message with its size
_READS = 10  # of the reason of a rank whose connection is broken,
_READ_SECONDS = 0.05  # with so much time behind each


class _BrokenConnection(Exception):
    """An operation with a peer has failed; Gloo's text."""

    def __init__(self, peer: int, text: str) -> None:
        super().__init__(text)
        self.peer = peer


def _with_peer(peer: int, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, which has to do with ``peer``."""
    try:
        return function(*args)
    except RuntimeError as error:
        raise _BrokenConnection(peer, str(error).split(". This is typically", 1)[0]) from error


class GroupMessages:
    """Sends and receives objects over a group; after a failure it is closed for good.

    Args:
        group: A Gloo group that carries nothing else, and that nothing else refers to.
        rank: This process's place among its members.
        reasons: Where ranks say why they leave.

    Attributes:
        bytes_received: Of all messages so far.
        ended_by: Why it was closed, where that was another rank's fault; else None.
    """

    def __init__(self, group: ProcessGroup, rank: int, reasons: AbortReasons) -> None:
        self._group: Any = group
        self._rank, self._reasons = rank, reasons
        self._why = ""
        self._lost: AbortReason | None = None
        self._number = 0
        self._waits: tuple[int, int] | None = None  # (number of the swap, peer) that this rank waits for
        self._seen: tuple[int, int] | None = None
        self._published: tuple[int, int] | None = None
        self._signs = 0  # how often this rank has said that it works
        self._heard: Any = None  # the last such word of another
        self.bytes_received = 0
        self.ended_by: AbortReason | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._group is None

    def swap(self, call: Call, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        """Send an object to each of these ranks and receive one from each of those; never this rank.

        Raises:
            PeerLostError: A rank has died or has left the group.
            CommTimeoutError: A rank has not come within the group's timeout.
            DisagreementError: A rank makes another call.
        """
        if self._group is None:
            raise CommError(
                f"rank {self._rank}: the control group is closed since {self._why}; call dgcl.init() again,"
                " with a group of the ranks that are left if one has died"
            )
        handled = sys.exc_info()[1]  # the caller's, who may be in a handler
        try:
            received = self._transfer(call, outgoing, sources)
            for peer, (theirs, _) in received.items():
                if theirs != call:
                    raise different_calls(call, self._rank, theirs, peer)
            return {peer: value for peer, (_, value) in received.items()}
        except _BrokenConnection as error:
            reason = self._lost or self._reason(error.peer, str(error))
            clause = reason.clause
            if reason is not self._lost and reason.culprit != error.peer:
                clause += f", says rank {error.peer}"
            self._close_after(error, handled, reason)
            raise reason.kind(
                f"rank {self._rank}: {_name(call)} over the control group failed: {clause}"
            ) from None
        except DisagreementError as error:
            self._close_after(error, handled, AbortReason(self._rank, str(error), DisagreementError))
            raise DisagreementError(f"rank {self._rank}: {error}") from None
        except BaseException as error:
            why = f"was stopped by {type(error).__name__} in {_name(call)}"
            self._close_after(error, handled, AbortReason(self._rank, f"rank {self._rank} {why}"))
            raise

    def lose(self, peer: int, reason: AbortReason | None = None) -> None:
        """End all waits of this rank, and say why: another thread has seen that ``peer`` closed its connection."""
        group = self._group
        if group is None:
            return
        self._lost = reason or self._reason(peer, "its connection is closed")
        self._reasons.post(self._rank, self._lost)  # who sees connections break looks for it
        for other in range(group.size()):
            if other != self._rank:
                with suppress(RuntimeError):  # a wait that ends without its data breaks the connections
                    group.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], other, _NEVER).wait(
                        timedelta(milliseconds=1)
                    )

    def lost_error(self) -> CommError:
        """The error of a rank that was not waiting when it lost a peer; its connections are closed."""
        assert self._lost is not None
        self.close(self._lost)
        return self._lost.kind(f"rank {self._rank} stops its part of the set-up: {self._lost.clause}")

    def lose_late(self, seconds: float) -> None:
        """End the wait of this rank, which has lasted so long, as :meth:`lose`."""
        if (waits := self._waits) is not None:
            self.lose(waits[1], self._late(waits[1], f"waited {seconds:g} s in vain"))

    def broken(self, peer: int, text: str) -> CommError:
        """The error for a peer, its connection of another group having broken; closes, and others find the reason."""
        reason = self._reason(peer, text)
        self.close(reason)
        return reason.kind(f"rank {self._rank}: {reason.clause}")

    def publish_wait(self) -> None:
        """Called from time to time by another thread: write down for whom this rank has waited since the last time."""
        waits = self._waits
        if waits is not None and waits == self._seen != self._published:
            self._reasons.post_wait(self._rank, *waits)
            self._published = waits
        self._seen = waits

    def publish(self) -> None:
        """As :meth:`publish_wait`, in set-up: a rank that waits for nobody says that it works."""
        if self._waits is None:
            self._signs -= 1  # below the numbers of all swaps
            self._reasons.post_wait(self._rank, self._signs, self._rank)
        self.publish_wait()

    def hears(self) -> bool:
        """Whether the rank for which this one waits has said that it works since that was asked last."""
        if (waits := self._waits) is None:
            return True
        before, late = self._heard, self.last_in_row(waits[1])
        with suppress(ConnectionError):
            self._heard = self._reasons.wait_of(late)
        return self._heard != before and self._heard[1] == late

    def post_wait(self, number: int, peer: int) -> None:
        """Write down for whom this rank waits, beside its swaps; its reason to leave says more."""
        self._reasons.post_wait(self._rank, number, peer)

    def last_in_row(self, peer: int) -> int:
        """The rank at the end of a chain of waits; ``peer`` if the store does not answer."""
        with suppress(ConnectionError):
            return self._reasons.last_in_row(self._rank, peer)
        return peer

    def leave(self, why: str, kind: type[CommError] = PeerLostError) -> None:
        """Close all connections because of this rank; ``why`` completes a sentence about it."""
        self.close(AbortReason(self._rank, f"rank {self._rank} {why}", kind))

    def close(self, reason: AbortReason) -> None:
        """Say why, and close all connections, which every rank that waits for this one notices."""
        if self._group is not None:
            group, self._group, self._why = self._group, None, reason.clause
            self.ended_by = reason if reason.culprit != self._rank else None
            self._reasons.post(self._rank, reason)
            del group  # the last reference, and the connections with it

    @untransformed
    def _transfer(
        self, call: Call, outgoing: dict[int, Any], sources: list[int]
    ) -> dict[int, tuple[Call, Any]]:
        self._number += 1
        sends = []  # (peer, what must live until it is sent, the sending)
        packed: dict[int, list[torch.Tensor]] = {}  # by the object's id: what goes to all is pickled once
        for peer, value in outgoing.items():
            if id(value) not in packed:
                packed[id(value)] = _packed((tuple(call), value))
            sends += [
                (peer, part, _with_peer(peer, self._group.send, [part], peer, _TAG))
                for part in packed[id(value)]
            ]
        first = self._receive_all(dict.fromkeys(sources, 8 + _SMALL))
        sizes = {peer: int(part[:8].view(torch.int64)) for peer, part in first.items()}
        rest = self._receive_all({peer: size for peer, size in sizes.items() if size > _SMALL})
        self._wait_all([(peer, sending) for peer, _, sending in sends])
        del sends, packed  # each is as long as what is unpickled
        received = {}
        for peer, part in first.items():
            theirs, value = pickle.loads(rest.pop(peer, part[8:]).numpy().data)
            received[peer] = Call(*theirs), value
        return received

    def _receive_all(self, sizes: dict[int, int]) -> dict[int, torch.Tensor]:
        into = {peer: torch.empty(size, dtype=torch.uint8, device="cpu") for peer, size in sizes.items()}
        receives = [
            (peer, _with_peer(peer, self._group.recv, [part], peer, _TAG)) for peer, part in into.items()
        ]
        self._wait_all(receives)
        self.bytes_received += sum(part.nbytes for part in into.values())
        return into

    def _wait_all(self, operations: list[tuple[int, Any]]) -> None:
        """Wait for sends, or for receives, and let others know for whom."""
        try:
            for peer, operation in operations:
                self._waits = self._number, peer
                _with_peer(peer, operation.wait)
        finally:
            self._waits = None

    def _close_after(self, error: BaseException, handled: BaseException | None, reason: AbortReason) -> None:
        """Close although ``error`` is on its way: what its frames hold would keep the connections open.

        The frames of ``handled``, which came before, are not ours.
        """
        cause: BaseException | None = error
        while cause is not None and cause is not handled:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__context__
        self.close(reason)

    def _reason(self, peer: int, text: str) -> AbortReason:
        """Whose fault it is that an operation with ``peer`` ended with this text of Gloo's."""
        if gloo_timed_out(text):
            return self._late(peer, text)
        reason = None
        try:
            reason = self._said_by(peer)
        except ConnectionError as error:
            text += f"; {error}: the rank that keeps it may be the one that died"
        return reason or AbortReason(peer, f"rank {peer} has died or left ({text})")

    def _said_by(self, peer: int) -> AbortReason | None:
        """Why a rank left. Gloo breaks connections where a wait times out, a little before that rank can say it."""
        for attempt in range(_READS):
            time.sleep(_READ_SECONDS if attempt else 0.0)
            reason = self._reasons.read(peer)
            if reason is not None:
                return reason
        return None

    def _late(self, peer: int, text: str) -> AbortReason:
        """Who has not come where ``peer`` was waited for in vain."""
        late = self.last_in_row(peer)
        with suppress(ConnectionError):  # the store does not answer
            reason = self._reasons.read(peer)
            if reason is not None and reason.culprit != self._rank:
                return reason
        waits = "" if late == peer else f"; rank {peer} waits for it"
        advice = "if late, give build_comm_info, or in set-up dgcl.init, a longer timeout"
        clause = f"rank {late} has not come ({text}{waits}; late, stopped or cut off: {advice})"
        return AbortReason(late, clause, CommTimeoutError)


def _packed(value: Any) -> list[torch.Tensor]:
    """A message of always the same length, with the size of the object, and itself where it fits; else one more."""
    pickled = pickle.dumps(value)
    size = len(pickled).to_bytes(8, "little")
    parts = [size, pickled] if len(pickled) > _SMALL else [size + pickled]
    parts[0] = parts[0].ljust(8 + _SMALL)
    return [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts]


def _name(call: Call) -> str:
    return call.name or call.verb
