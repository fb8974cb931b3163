"""Python objects between the ranks of a Gloo group, from each straight to each.

The object collectives of ``torch.distributed`` pass messages around a ring: when a rank dies its two neighbours
hear of it, and everybody else waits for the group's timeout, half an hour by default. Here a rank waits on the
connection to the very rank that it wants something from, which breaks at once, so all hear of it, and know whose
it was. Whoever has heard closes its own connections, so that ranks that wait for *it* hear in turn; why, they find in
its farewell.

Objects are pickled; nothing is unpickled that did not come over a connection of this group.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from dgcl.errors import CommError, CommTimeoutError, PeerLostError
from dgcl.ranks.abort_reasons import Farewell, Farewells
from dgcl.ranks.groups import forget_group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_TAG: Final = 0


class _Broken(Exception):
    """An operation with a peer has failed; Gloo's text."""

    def __init__(self, peer: int, text: str) -> None:
        super().__init__(text)
        self.peer, self.text = peer, text


def _step(peer: int, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, which has to do with ``peer``."""
    try:
        return function(*args)
    except RuntimeError as error:
        raise _Broken(peer, str(error).split(". This is typically", 1)[0]) from error


class GroupMessages:
    """Sends and receives objects over a group; after a failure it is closed for good.

    Args:
        group: A Gloo group that carries nothing else.
        rank: This process's place among its members.
        farewells: Where ranks say why they leave; None: nowhere, and a rank is blamed that saw another die.
    """

    def __init__(self, group: ProcessGroup, rank: int, farewells: Farewells | None = None) -> None:
        self._group: ProcessGroup | None = group
        self._rank, self._farewells = rank, farewells
        self._why = ""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._group is None

    def swap(self, verb: str, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        """Send an object to each of these ranks and receive one from each of those; this rank is not among
        them.

        Raises:
            PeerLostError: A rank has died or has left the group.
            CommTimeoutError: A rank has not come within the group's timeout.
        """
        if self._group is None:
            raise CommError(
                f"rank {self._rank}: the control group is closed since {self._why}; call dgcl.init() again,"
                " with a group of the ranks that are left if one has died"
            )
        handled = sys.exc_info()[1]  # the caller's, who may be in a handler
        try:
            return self._transfer(outgoing, sources)
        except _Broken as error:
            farewell = self._cause(error.peer, error.text)
            kind = CommTimeoutError if farewell.late else PeerLostError
            clause = farewell.clause
            if farewell.culprit != error.peer:
                clause += f", says rank {error.peer}"
            self._close_after(error, handled, farewell)
            raise kind(f"rank {self._rank}: {verb} over the control group failed: {clause}") from None
        except BaseException as error:
            why = f"was stopped by {type(error).__name__} in {verb}"
            self._close_after(error, handled, Farewell(self._rank, f"rank {self._rank} {why}"))
            raise

    def _transfer(self, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        sends = []  # (peer, what must live until it is sent, the sending)
        packed: dict[int, torch.Tensor] = {}  # by the object's id: what goes to all is pickled once
        for peer, value in outgoing.items():
            if id(value) not in packed:
                packed[id(value)] = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
            data = packed[id(value)]
            sends += [(peer, part, self._send(part, peer)) for part in (torch.tensor([len(data)]), data)]
        sizes = self._receive_all({peer: torch.zeros(1, dtype=torch.int64) for peer in sources})
        parts = self._receive_all(
            {peer: torch.empty(int(size), dtype=torch.uint8) for peer, size in sizes.items()}
        )
        for peer, _, sending in sends:
            _step(peer, sending.wait)
        return {peer: pickle.loads(part.numpy().data) for peer, part in parts.items()}

    def _receive_all(self, into: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        waits = [(peer, self._receive(part, peer)) for peer, part in into.items()]
        for peer, receiving in waits:
            _step(peer, receiving.wait)
        return into

    def _close_after(self, error: BaseException, handled: BaseException | None, farewell: Farewell) -> None:
        """Close although ``error`` is on its way: what its frames hold would keep the connections open. Those of
        ``handled``, which came before, are not ours."""
        cause: BaseException | None = error
        while cause is not None and cause is not handled:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__context__
        self.close(farewell)

    def leave(self, why: str) -> None:
        """Close all connections because of this rank; ``why`` completes a sentence about it."""
        self.close(Farewell(self._rank, f"rank {self._rank} {why}"))

    def close(self, farewell: Farewell) -> None:
        """Say why, and close all connections, which every rank that waits for this one notices."""
        if self._group is not None:
            group, self._group, self._why = self._group, None, farewell.clause
            if self._farewells is not None:
                self._farewells.say(self._rank, farewell)
            forget_group(group)

    def _cause(self, peer: int, text: str) -> Farewell:
        """Whose fault it is that an operation with ``peer`` ended with this text of Gloo's."""
        if "imed out" in text:
            return Farewell(peer, f"rank {peer} has not come ({text})", late=True)
        try:
            farewell = self._farewells.of(peer) if self._farewells is not None else None
        except ConnectionError as error:
            text += f"; {error}: the rank that keeps it may be the one that died"
            farewell = None
        return farewell or Farewell(peer, f"rank {peer} has died or left ({text})")

    def _send(self, data: torch.Tensor, peer: int) -> Any:
        assert self._group is not None
        return _step(peer, self._group.send, [data], peer, _TAG)

    def _receive(self, data: torch.Tensor, peer: int) -> Any:
        assert self._group is not None
        return _step(peer, self._group.recv, [data], peer, _TAG)
