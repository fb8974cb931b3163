"""Sends the bytes of a stage between ranks: by a device's backend, by Gloo, or between threads.

``post(arrived, packed, receives, sends)`` begins to send ``(sum(sends), B)`` bytes and to receive ``(sum(receives),
B)``. ``wait(work, seconds)`` says whether that is over, within so long, or raises :class:`ConnectionBroken`.
``pending(work)`` are the ranks of messages that may not be over; the first one is not. ``abort()`` ends all that is
under way, here and at the peers; ``close()`` also gives the connections up.
Called by `agreement`, `call` and `dgcl/transport/connect`. Free to change while a broken connection is raised and no
abort makes its caller wait (`tests/dgcl/transport/collective/test_wires.py`), and all bytes arrive
(`tests/dgcl/transport/collective/test_transport.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import zip_longest
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from dgcl.ranks.connections import Connection
from dgcl.ranks.context import keep_in_forks

_ROWS, _NEVER = 2, 3  # tags, of which the second is never sent
_DEADLINES = 10  # of the transport in that of a wait of Gloo's: the transport's own must come first
_JOIN_SECONDS = 0.5
_ARRIVING = 0.1  # seconds without a message after which those of a closed connection do not come

#: Bytes of a message, unless a row is longer: on a slow network each that arrives is progress, and ranks alternate.
_MESSAGE = 1 << 23


class ConnectionBroken(Exception):
    """A connection broke; its other end, where that is known, is ``peer``."""

    def __init__(self, text: str, peer: int | None = None) -> None:
        super().__init__(text.splitlines()[0])
        self.peer = peer


class BackendWire:
    """A group of a device's backend: a stage is one ``all_to_all_single``, for which the host does not wait."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.name = f"all_to_all_single of {group.name()}"

    def post(self, arrived: Tensor, packed: Tensor, receives: list[int], sends: list[int]) -> Any:
        """As the module says."""
        return self._group.alltoall_base(arrived, packed, receives, sends)

    def wait(self, work: Any, seconds: float) -> bool:
        """Put what follows in the device's queue behind it: for the host it is over."""
        try:
            return bool(work.wait())
        except torch.distributed.DistError as error:
            raise ConnectionBroken(str(error)) from None

    def pending(self, work: Any) -> list[int]:
        """Nothing is known of parts."""
        return list(range(self._group.size()))

    def abort(self) -> None:
        """As the module says."""
        threading.Thread(target=self._group.abort, name="dgcl abort", daemon=True).start()

    close = abort


class _Messages:
    """The messages of a stage.

    Attributes:
        works: What is under way, each with the rank at its other end; first ``num_receives`` receives.
        rows: Of each what it sends or receives into.
        num_over: How many are.
        broken: What went wrong, with whom; None: nothing.
    """

    def __init__(self) -> None:
        self.works: list[tuple[Any, int]] = []
        self.rows: list[Tensor] = []
        self.num_over = self.num_receives = 0
        self.broken: ConnectionBroken | None = None
        self.over = threading.Event()


class GlooWire:
    """Messages of Gloo from each rank to each, several for many rows.

    ``all_to_all_single`` of Gloo takes up to 1.8 times as long over a network. A wait of Gloo's for a message that does
    not come in time breaks all connections, so a thread waits, with a deadline far beyond the transport's.
    """

    name = "messages of gloo"

    def __init__(self, group: Any, connections: Mapping[int, Connection], timeout: float) -> None:
        self._group, self._connections, self._process = group, connections, os.getpid()
        self._longest = timedelta(seconds=min(_DEADLINES * timeout, 1e6))
        self._posted: SimpleQueue[_Messages | None] = SimpleQueue()
        self._last = _Messages()
        self._thread = threading.Thread(target=self._await_all, name="dgcl messages", daemon=True)
        self._thread.start()
        keep_in_forks(self)

    def post(self, arrived: Tensor, packed: Tensor, receives: list[int], sends: list[int]) -> Any:
        """As the module says."""
        messages, peer = _Messages(), None
        self._last = messages
        try:
            for peer, part in self._slices(arrived, receives, -1):
                messages.rows.append(part)
                messages.works.append((self._group.recv([part], peer, _ROWS), peer))
            messages.num_receives = len(messages.works)
            for peer, part in self._slices(packed, sends, 1):
                messages.rows.append(part)
                messages.works.append((self._group.send([part], peer, _ROWS), peer))
        except RuntimeError as error:
            messages.broken = ConnectionBroken(str(error), peer)
        if messages.works:
            self._posted.put(messages)
        else:
            messages.over.set()
        return messages

    def _slices(self, rows: Tensor, counts: list[int], way: int) -> Iterator[tuple[int, Tensor]]:
        """The messages to, or from, each other rank, who take turns from the next one on."""
        size, rank, parts = len(counts), self._group.rank(), rows.split(counts)
        peers = [peer for k in range(1, size) if counts[peer := (rank + way * k) % size]]
        step = max(_MESSAGE // max(rows.shape[1], 1), 1)
        for turn in zip_longest(*(parts[peer].split(step) for peer in peers)):
            yield from ((peer, part.data) for peer, part in zip(peers, turn, strict=True) if part is not None)

    def _await_all(self) -> None:
        while (messages := self._posted.get()) is not None:
            try:
                for work, _ in messages.works:
                    work.wait(self._longest)
                    messages.num_over += 1
            except RuntimeError as error:
                peer = messages.works[messages.num_over][1]
                messages.broken = messages.broken or ConnectionBroken(str(error), peer)
            work = None
            messages.works.clear()
            messages.over.set()
            del messages

    def wait(self, work: Any, seconds: float) -> bool:
        """As the module says."""
        if not work.over.wait(seconds):
            num_over, peers = work.num_over, GlooWire.pending(self, work)[:1]
            # Gloo, having closed a connection, does not end the wait for a message that was cut off.
            closed = [
                peer for peer in peers if peer in self._connections and not self._connections[peer].is_open
            ]
            if closed and not work.over.wait(_ARRIVING) and work.num_over == num_over:
                raise ConnectionBroken("its connection is closed", closed[0])
            return False
        if work.broken is not None:
            raise work.broken
        return True

    def pending(self, work: Any) -> list[int]:
        """As the module says."""
        return [
            peer for _, peer in work.works[work.num_over : work.num_receives] or work.works[work.num_over :]
        ]

    def abort(self) -> None:
        """As the module says."""
        for peer in range(self._group.size() if self._group is not None else 0):
            # A wait that ends without its data breaks all connections.
            with suppress(RuntimeError, ValueError):
                empty = torch.empty(1, dtype=torch.uint8, device="cpu")
                self._group.recv([empty], peer, _NEVER).wait(timedelta(milliseconds=1))

    def close(self) -> None:
        """As the module says; not in a fork of the rank's process, which has the connections but no thread."""
        if self._group is None or os.getpid() != self._process:
            return
        self._posted.put(None)
        self.abort()
        self._thread.join(_JOIN_SECONDS)
        # Gloo goes on waiting for a message that was cut off. Nothing is written any more, so its memory can go.
        for part in self._last.rows:
            part.data = part.new_empty(0)
        self._group = None


class PinnedWire(GlooWire):
    """Gloo behind copies to and from pinned memory of the host, for devices without a backend between these ranks."""

    def post(self, arrived: Tensor, packed: Tensor, receives: list[int], sends: list[int]) -> Any:
        """As the module says; the host waits until the rows are packed."""
        below, leaving = (
            torch.empty(rows.shape, dtype=torch.uint8, pin_memory=True, device="cpu")
            for rows in (arrived, packed)
        )
        leaving.copy_(packed)
        return super().post(below, leaving, receives, sends), arrived, below

    def wait(self, work: Any, seconds: float) -> bool:
        """As the module says."""
        posted, arrived, below = work
        over = super().wait(posted, seconds)
        if over:
            arrived.copy_(below, non_blocking=True)
        return over

    def pending(self, work: Any) -> list[int]:
        """As the module says."""
        return super().pending(work[0])


class Mailbox:
    """Where threads leave slices of tensors for each other, by (number, sender, receiver)."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.slices: dict[tuple[int, int, int], Tensor] = {}


class ThreadWire:
    """Slices of tensors between threads of one process, through a mailbox of theirs."""

    name = "slices of tensors between threads"

    def __init__(self, rank: int, mailbox: Mailbox) -> None:
        self._rank, self._mailbox, self._number = rank, mailbox, 0

    def post(self, arrived: Tensor, packed: Tensor, receives: list[int], sends: list[int]) -> Any:
        """As the module says."""
        self._number += 1
        number, rank = self._number, self._rank
        left = {(number, rank, peer): part for peer, part in enumerate(packed.split(sends)) if len(part)}
        missing = {
            (number, peer, rank): place for peer, place in enumerate(arrived.split(receives)) if len(place)
        }
        _wait_for_device(packed)  # the peers' streams know nothing of this rank's
        with self._mailbox.changed:
            self._mailbox.slices.update(left)
            self._mailbox.changed.notify_all()
        return left.keys(), missing

    def wait(self, work: Any, seconds: float) -> bool:
        """As the module says; over when the peers have taken this rank's slices, too."""
        left, missing = work
        box = self._mailbox

        def over() -> bool:
            for key in missing.keys() & box.slices.keys():
                _wait_for_device(missing.pop(key).copy_(box.slices[key]))
                del box.slices[key]
                box.changed.notify_all()
            return not missing and not left & box.slices.keys()

        with box.changed:
            return box.changed.wait_for(over, seconds)

    def pending(self, work: Any) -> list[int]:
        """As the module says."""
        left, missing = work
        return [peer for _, peer, _ in missing] + [peer for _, _, peer in left & self._mailbox.slices.keys()]

    def abort(self) -> None:
        """Do nothing: nobody waits for longer than a moment."""

    close = abort


def _wait_for_device(rows: Tensor) -> None:
    """Wait for what the current stream has been given."""
    if rows.device.type != "cpu":
        getattr(torch, rows.device.type).current_stream(rows.device).synchronize()


Wire = BackendWire | GlooWire | ThreadWire
