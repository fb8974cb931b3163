"""Sends rows between machines by NCCL, as groups of ``torch.distributed`` on a dedicated communicator.

A group is an NCCL group: its sends and receives run concurrently, in one kernel. torch runs it on a stream of its
own, after everything queued on the caller's current stream, and ``wait`` orders that stream after the group; the
host blocks in neither. NCCL does block when it first connects two ranks. So every pair that will exchange rows is
connected at set-up, in a group that all ranks take part in, as torch requires of the first group.

NCCL may be missing, may find no path, or may hang while it connects. So set-up tests it by transfers whose bytes are
compared, under a deadline. If it fails on one rank, all ranks send rows through their hosts instead.

Side effects of NCCL and torch that programs must know:

- Ranks must not wait for two communicators of one device in different orders.
- A kernel that waits for a message occupies multiprocessors.
- When a connection breaks, torch's own watchdog ends the *process*, after a minute for its records, unless
  ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` is 0. Even then the monitor of the process's first NCCL group ends it, on all
  ranks, some minutes later, unless ``TORCH_NCCL_ENABLE_MONITORING`` is 0.

A group reads both variables from the environment when it is made; they cannot be passed as options. The library sets
neither: docs/gpu.md and a log line at INFO ask users to do so.
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
    """Message channel over a backend of ``torch.distributed`` that sends and receives in groups.

    Implements :class:`~dgcl.transport.cuda.message_channel.MessageChannel`.

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
                    # A group belongs to the thread: if left open, it would collect all later NCCL
                    # operations of this thread.
                    with suppress(RuntimeError):
                        group._end_coalescing()
                    raise
                work = group._end_coalescing()
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            raise CommError(f"NCCL: {error}") from None

    def abort(self) -> None:
        """Abort NCCL, so that its running kernels end."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        with suppress(RuntimeError):  # a communicator that is broken already
            self._group.abort()

    def close(self) -> None:
        """Wait until NCCL has delivered all accepted messages, and shut it down."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        with suppress(RuntimeError):
            self._group.shutdown()

    def _place(self, address: int, num_bytes: int) -> Tensor:
        """Return a tensor over device memory, cached because pools reuse the same addresses."""
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
    """Open an NCCL channel between all ranks, or return the reason why there is none.

    Collective; every rank gets the same answer.

    Args:
        control: The control plane.
        device: This rank's.
        partners: Ranks that this rank will exchange messages with.
        timeout: Longest wait of ranks for each other while they connect, in seconds.
        asked: Whether the user requested NCCL; then it is tried even if ranks share a GPU, which some versions allow.
    """
    problem = next(filter(None, control.exchange(_hindrance(control))), "")
    devices = control.exchange(device.uuid)
    if not problem and not asked and len(set(devices)) < len(devices):
        problem = "NCCL wants a GPU for each rank, and some share one"
    if problem:
        return None, problem
    store = cast(GroupControl, control).next_store()
    wire: NcclChannel | None = None
    # A rank whose NCCL fails at once waits, with the set-up timeout, for ranks whose NCCL hangs.
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
    except Exception as error:  # any error: the other ranks wait for this rank's result
        problem = f"rank {control.rank}: {(str(error) or type(error).__name__).splitlines()[0]}"
    problem = next(filter(None, control.exchange(problem)), "")
    if problem:
        for each in made:  # its kernels may be blocked, and so may the call that ends them
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
    """Return why NCCL cannot be tried; "" if it can."""
    import torch.distributed as dist

    if not control.has_group:
        return "NCCL wants ranks that are processes of a torch.distributed group"
    return "" if dist.is_nccl_available() else "this torch is built without NCCL"


def prove(
    wire: MessageChannel, device: Device, rank: int, world_size: int, partners: Iterable[int], seconds: float
) -> None:
    """Exchange a test pattern with both neighbouring ranks and all partners, and compare the bytes.

    The ring of neighbours puts all ranks into the channel's first group; afterwards every pair that will exchange
    rows is connected.

    Raises:
        CommError: The pattern did not arrive in time, or arrived changed.
    """
    sent_to = sorted({(rank + 1) % world_size, *partners} - {rank})
    come_from = sorted({(rank - 1) % world_size, *partners} - {rank})
    driver, size = device.driver, max(len(sent_to) + len(come_from), 1) * _PROOF
    memory, stream, event = driver.allocate(size), driver.create_stream(), driver.create_event()
    table = np.zeros((size // _PROOF, _PROOF), np.uint8)
    for place, peer in enumerate(sent_to):
        table[place] = pattern(rank, peer)
    device.upload(memory, table, stream)
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
    # If this fails, the memory is kept: kernels may still write to it.
    driver.destroy_event(event)
    driver.destroy_stream(stream)
    driver.free(memory)


def pattern(sender: int, receiver: int) -> np.ndarray:
    """Return the test pattern that one rank sends to another."""
    return np.random.default_rng([sender, receiver]).integers(0, 256, _PROOF, np.uint8)


def _await(happened: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise CommError(f"no message has come within {seconds:g} s")
        time.sleep(_POLL)
