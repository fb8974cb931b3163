"""How the bytes of a stage travel between ranks: three wires with one interface.

``post(arrived, packed, receives, sends)`` begins to send ``(sum(sends), B)`` bytes and to receive ``(sum(receives),
B)``. ``wait(work, seconds)`` says whether that is over, within so long; RuntimeError: a connection broke. ``abort()``
ends all that is under way, here and at the peers.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

from dgcl.ranks.control import Control
from dgcl.ranks.group_control import GroupControl

_NEVER: Final = 3  # a tag that is never sent
_PAUSE: Final = 20e-6  # seconds between two looks at a device
_DEADLINES: Final = 10  # of the transport in that of the group: the transport's own must come first


def open_wire(control: Control, device: torch.device, timeout: float, backend: Any = None) -> Wire:
    """The wire between the ranks of a control plane. Collective.

    Args:
        control: The control plane.
        device: Where rows are.
        timeout: Seconds that a rank waits for another inside a call.
        backend: A group of the device's backend that carries nothing else; None: there is none.
    """
    if backend is not None:
        return GroupWire(backend, on_device=True)
    if not isinstance(control, GroupControl):
        return ThreadWire(control.rank, control.exchange(Mailbox())[0])
    group: Any = control.new_group()
    group._set_default_timeout(timedelta(seconds=min(_DEADLINES * timeout, 1e6)))
    return GroupWire(group) if device.type == "cpu" else PinnedWire(group)


class GroupWire:
    """A group of torch's.

    On a device the host waits for each stage, too, and so keeps deadlines: what waits there for a rank that is gone
    would otherwise wait for ever.
    """

    def __init__(self, group: Any, on_device: bool = False) -> None:
        self._group, self._on_device = group, on_device
        self.name = f"all_to_all_single of {group.name()}"

    def post(self, arrived: Tensor, packed: Tensor, receives: list[int], sends: list[int]) -> Any:
        """As the module says."""
        return self._group.alltoall_base(arrived, packed, receives, sends)

    def wait(self, work: Any, seconds: float) -> bool:
        """As the module says."""
        if self._on_device:
            deadline = time.monotonic() + seconds
            while not work.is_completed():
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE)
            return bool(work.wait())  # what follows in the device's queue, too
        try:
            return bool(work.wait(timedelta(seconds=seconds)))
        except RuntimeError:
            return work.is_completed() and bool(work.wait())  # which raises what went wrong, if not the time

    def abort(self) -> None:
        """As the module says."""
        if self._on_device:
            threading.Thread(target=self._group.abort, name="dgcl abort", daemon=True).start()
            return
        for peer in range(self._group.size()):
            with suppress(
                RuntimeError, ValueError
            ):  # a wait that ends without its data breaks all connections
                empty = torch.empty(1, dtype=torch.uint8, device="cpu")
                self._group.recv([empty], peer, _NEVER).wait(timedelta(milliseconds=1))


class PinnedWire(GroupWire):
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
                missing.pop(key).copy_(box.slices.pop(key))
                box.changed.notify_all()
            return not missing and not left & box.slices.keys()

        with box.changed:
            return box.changed.wait_for(over, seconds)

    def abort(self) -> None:
        """Do nothing: nobody waits for longer than a moment."""


Wire = GroupWire | ThreadWire
