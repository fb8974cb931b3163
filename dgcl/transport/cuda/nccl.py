"""Rows between machines by NCCL: groups of ``torch.distributed`` on a communicator that is used for nothing else.

A group is what NCCL calls a group: its sends and receives run side by side, in one kernel. torch runs it on a stream
of its own, behind all that the caller's current stream was given, and ``wait`` lets that stream go on behind it; the
host waits for neither. NCCL connects two ranks when they first meet, and that does wait: so every pair that will
exchange rows meets at set-up, in a group that all ranks make, as torch asks of the first.

NCCL may not be there, may not find a way, or may wait for ever for one. So whether it works is found out by transfers
whose bytes are compared, under a deadline, and where it does not on one rank, all take the way through their hosts.

What NCCL and torch do beside that, and what it means for a program: two communicators of one device should not be
waited for in different orders on different ranks; a kernel that waits for a message takes multiprocessors from others;
and where a connection breaks, torch's own watchdog ends the *process*, after a minute for its records, unless
``TORCH_NCCL_ASYNC_ERROR_HANDLING`` is 0; and even then the monitor of the process's first NCCL group does, on all
ranks, some minutes later, unless ``TORCH_NCCL_ENABLE_MONITORING`` is 0. A group reads both from the environment when it
is made; there is no option for them. The library sets none: docs/gpu.md asks users to, and so does a line at INFO.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from dgcl.errors import CommError
from dgcl.ranks.control import Control
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.group_control import GroupControl
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.message_channel import Message, MessageChannel

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("dgcl")

#: A wait that times out breaks the group, and torch ends the process; the watchdog's deadline is the only one.
_FOREVER: Final = timedelta(days=100)
#: Seconds for NCCL to connect all ranks.
_CONNECTING: Final = 120.0
_POLL: Final = 0.005
_PROOF: Final = 4096
_MOST_PLACES: Final = 4096
#: What torch reads, and does, unless it is 0.
_ENDS_PROCESSES: Final = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")


class NcclChannel:
    """A :class:`~dgcl.transport.cuda.message_channel.MessageChannel` over a backend of ``torch.distributed`` that sends
    and receives in groups.

    Args:
        group: The backend, used for nothing else.
        device: This rank's.
    """

    def __init__(self, group: Any, device: Device) -> None:
        self._group, self._device = group, device
        self._places: dict[tuple[int, int], Tensor] = {}
        self._ending = threading.Lock()
        self._ended = False

    def group(self, sends: Sequence[Message], receives: Sequence[Message], stream: int) -> None:
        """Enqueue a group on ``stream``."""
        group = self._group
        if self._ended:
            raise CommError("its connections to other machines are closed")
        if not sends and not receives:
            return
        try:
            with self._device.tensors.on(stream):
                group._start_coalescing()
                try:
                    for peer, address, num_bytes in sends:
                        group.send([self._place(address, num_bytes)], peer, 0)
                    for peer, address, num_bytes in receives:
                        group.recv([self._place(address, num_bytes)], peer, 0)
                except BaseException:
                    # A group is the thread's: left open, it would take in all that others give NCCL here, for ever.
                    with suppress(RuntimeError):
                        group._end_coalescing()
                    raise
                work = group._end_coalescing()
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            raise CommError(f"NCCL: {error}") from None

    def abort(self) -> None:
        """Let NCCL's kernels end, wherever they are."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        with suppress(RuntimeError):  # a communicator that is broken already
            self._group.abort()

    def close(self) -> None:
        """Let NCCL deliver what it has taken, and end."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        with suppress(RuntimeError):
            self._group.shutdown()

    def _place(self, address: int, num_bytes: int) -> Tensor:
        """A tensor over device memory; pools hand out the same places again and again."""
        key = (address, num_bytes)
        found = self._places.get(key)
        if found is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            found = self._places[key] = self._device.tensors.over(None, address, num_bytes)
        return found


def open_nccl(
    control: Control, device: Device, partners: Iterable[int], timeout: float, asked: bool = False
) -> tuple[MessageChannel | None, str]:
    """A wire by NCCL between all ranks of the job, and why there is none. Collective; every rank gets the same.

    Args:
        control: The control plane.
        device: This rank's.
        partners: Whom this rank will exchange messages with.
        timeout: Seconds that ranks wait for each other, at most, while they connect.
        asked: Whether the user wants NCCL; then it is tried even where ranks share a GPU, which some versions allow.
    """
    problem = next(filter(None, control.exchange(_hindrance(control))), "")
    devices = control.exchange(device.uuid)
    if not problem and not asked and len(set(devices)) < len(devices):
        problem = "NCCL wants a GPU for each rank, and some share one"
    if problem:
        return None, problem
    store = cast(GroupControl, control).next_store()
    wire: NcclChannel | None = None
    # A rank whose NCCL refuses at once waits for those whose NCCL waits in vain, as long as ranks do in set-up.
    seconds = min(timeout, _CONNECTING, cast(GroupControl, control).timeout / 2)

    def connect() -> NcclChannel:
        import torch.distributed as dist

        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _FOREVER
        with device.current():
            backend = dist.ProcessGroupNCCL(
                dist.PrefixStore("nccl", store), control.rank, control.world_size, options
            )
            made.append(NcclChannel(backend, device))
            prove(made[0], device, control.rank, control.world_size, partners, seconds)
        return made[0]

    made: list[NcclChannel] = []
    try:
        wire = in_time(connect, seconds + 1.0)
    except Exception as error:  # whatever it is: the others wait to hear of it
        problem = f"rank {control.rank}: {(str(error) or type(error).__name__).splitlines()[0]}"
    problem = next(filter(None, control.exchange(problem)), "")
    if problem:
        for each in made:  # its kernels may be waiting, and what ends them may, too
            threading.Thread(target=each.abort, name="dgcl abort", daemon=True).start()
        return None, f"NCCL does not work between these ranks ({problem})"
    if unset := [name for name in _ENDS_PROCESSES if os.environ.get(name) != "0"]:
        _log.info(
            "rank %d: rows go between machines by NCCL; without %s torch ends this process where a connection "
            "breaks, whatever the communicator says of it",
            control.rank,
            " and ".join(f"{name}=0" for name in unset),
        )
    return wire, ""


def _hindrance(control: Control) -> str:
    """Why NCCL cannot be tried; "" where it can."""
    import torch.distributed as dist

    if not control.has_group:
        return "NCCL wants ranks that are processes of a torch.distributed group"
    return "" if dist.is_nccl_available() else "this torch is built without NCCL"


def prove(
    wire: MessageChannel, device: Device, rank: int, world_size: int, partners: Iterable[int], seconds: float
) -> None:
    """Exchange a pattern with the next rank, the one before, and all partners, and compare it.

    All ranks are in the ring, so all are in the wire's first group, and every pair that will exchange rows has met.

    Raises:
        CommError: It did not come in time, or not as it was sent.
    """
    sent_to = sorted({(rank + 1) % world_size, *partners} - {rank})
    come_from = sorted({(rank - 1) % world_size, *partners} - {rank})
    driver, size = device.driver, max(len(sent_to) + len(come_from), 1) * _PROOF
    memory, stream, event = driver.allocate(size), driver.create_stream(), driver.create_event()
    table = np.zeros((size // _PROOF, _PROOF), np.uint8)
    for place, peer in enumerate(sent_to):
        table[place] = pattern(rank, peer)
    driver.copy_to_device(memory, table.ctypes.data, size, stream)
    places = [memory + _PROOF * place for place in range(len(table))]
    sends = [Message(peer, place, _PROOF) for peer, place in zip(sent_to, places, strict=False)]
    receives = [
        Message(peer, place, _PROOF) for peer, place in zip(come_from, places[len(sent_to) :], strict=False)
    ]
    wire.group(sends, receives, stream)
    driver.record_event(event, stream)
    _await(lambda: driver.has_happened(event), seconds)
    found = device.tensors.over(None, memory, size).cpu().numpy().reshape(table.shape)
    for peer, got in zip(come_from, found[len(sent_to) :], strict=False):
        if not np.array_equal(got, pattern(peer, rank)):
            raise CommError(f"what rank {peer} sent has not arrived as it was")
    # Where this fails memory stays: kernels may still write to it.
    driver.destroy_event(event)
    driver.destroy_stream(stream)
    driver.free(memory)


def pattern(sender: int, receiver: int) -> np.ndarray:
    """What a rank sends to another to prove the way."""
    return np.random.default_rng([sender, receiver]).integers(0, 256, _PROOF, np.uint8)


def _await(happened: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise CommError(f"no message has come within {seconds:g} s")
        time.sleep(_POLL)
