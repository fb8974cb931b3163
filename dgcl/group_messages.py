"""Python objects between the ranks of a Gloo group, from each straight to each.

The object collectives of ``torch.distributed`` pass messages around a ring: when a rank dies its two neighbours
hear of it, and everybody else waits for the group's timeout, half an hour by default. Here a rank waits on the
connection to the very rank that it wants something from, which breaks at once, so all hear of it, and know whose
it was. Whoever has heard closes its own connections, so that ranks that wait for *it* hear in turn.

Objects are pickled; nothing is unpickled that did not come over a connection of this group.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch

from dgcl.errors import CommError, CommTimeoutError, PeerLostError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class GroupMessages:
    """Sends and receives objects over a group; after a failure it is closed for good.

    Args:
        group: A Gloo group that carries nothing else.
        ranks: The global rank of each of its members.
        rank: This process's place among them.
    """

    def __init__(self, group: ProcessGroup, ranks: list[int], rank: int) -> None:
        self._group: ProcessGroup | None = group
        self._ranks, self._rank = ranks, rank
        self._why = ""

    def swap(self, verb: str, outgoing: dict[int, Any], sources: list[int]) -> dict[int, Any]:
        """Send an object to each of these ranks and receive one from each of those; this rank is not among
        them.

        Raises:
            PeerLostError: A rank has died or has left the group.
            CommTimeoutError: A rank has not come within the group's timeout.
        """
        if self._group is None:
            raise CommError(
                f"rank {self._rank}: the control group is closed since {self._why}; call dgcl.init() again on"
                " the ranks that are left"
            )
        peer = self._rank
        try:
            sends = []  # (peer, what must live until it is sent, the sending)
            packed: dict[int, torch.Tensor] = {}  # by the object's id: what goes to all is pickled once
            for peer, value in outgoing.items():
                if id(value) not in packed:
                    packed[id(value)] = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
                data = packed[id(value)]
                sends += [(peer, part, self._send(part, peer)) for part in (torch.tensor([len(data)]), data)]
            sizes = {peer: torch.zeros(1, dtype=torch.int64) for peer in sources}
            waits = [(peer, self._receive(sizes[peer], peer)) for peer in sources]
            for wait in waits:
                peer = wait[0]
                wait[1].wait()
            parts = {peer: torch.empty(int(sizes[peer]), dtype=torch.uint8) for peer in sources}
            waits = [(peer, self._receive(parts[peer], peer)) for peer in sources]
            for wait in waits:
                peer = wait[0]
                wait[1].wait()
            for send in sends:
                peer = send[0]
                send[2].wait()
        except RuntimeError as error:
            text = str(error).split(". This is typically", 1)[0]
            kind = CommTimeoutError if "imed out" in text else PeerLostError
            what = "has not come" if kind is CommTimeoutError else "has died or left"
            failure = kind(
                f"rank {self._rank}: {verb} over the control group failed: rank {peer} {what} ({text})"
            )
            self.close(str(failure))
            raise failure from None
        except BaseException as error:
            self.close(f"{verb} was stopped by {type(error).__name__}")
            raise
        return {peer: pickle.loads(part.numpy().data) for peer, part in parts.items()}

    def close(self, why: str) -> None:
        """Close all connections, which every rank that waits for this one notices."""
        import torch.distributed as dist

        if self._group is not None:
            group, self._group, self._why = self._group, None, why
            dist.destroy_process_group(group)

    def _send(self, data: torch.Tensor, peer: int) -> Any:
        import torch.distributed as dist

        return dist.isend(data, self._ranks[peer], group=self._group)

    def _receive(self, data: torch.Tensor, peer: int) -> Any:
        import torch.distributed as dist

        return dist.irecv(data, self._ranks[peer], group=self._group)
