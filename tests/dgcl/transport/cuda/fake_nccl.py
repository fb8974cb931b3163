"""What torch's NCCL backend promises, between devices made of host memory, and machines made of threads.

A group waits in a stream of its own for what was enqueued before it, and for both ends of all its messages; messages of
a pair meet in their order, and must be of one size. Nobody answers a rank that has aborted. Threads that play ranks of
different machines cannot open each other's shared memory, and their devices do not reach each other's.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import dgcl
from dgcl.errors import CommError
from dgcl.ranks.context import context
from dgcl.ranks.thread_control import ThreadControl
from dgcl.transport.connect import connect_runtime
from dgcl.transport.cuda import connect_device
from dgcl.transport.shared_memory.segments import PeerFile, SegmentFile
from tests.dgcl.support_plans import World
from tests.dgcl.transport.cuda.fake_cuda import FakeCuda, Memory, _contexts
from tests.dgcl.transport.cuda.fake_ranks import Rank, open_fake

_place = threading.local()


@dataclass(eq=False)
class Op:
    """One end of a message."""

    fake: FakeCuda
    address: int
    size: int
    done: bool = False


@dataclass(eq=False)
class Hub:
    """Where both ends of messages meet.

    Attributes:
        sizes: Of the messages that were delivered, by (sender, receiver), in their order.
        lose: Pairs whose messages never arrive.
        spoil: Whether what arrives is not what was sent.
        refuses: A rank whose backend cannot be made.
    """

    sizes: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    lose: set[tuple[int, int]] = field(default_factory=set)
    spoil: bool = False
    refuses: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)
    sends: dict[tuple[int, int], deque[Op]] = field(default_factory=lambda: defaultdict(deque))
    receives: dict[tuple[int, int], deque[Op]] = field(default_factory=lambda: defaultdict(deque))

    def post(self, pair: tuple[int, int], op: Op, is_send: bool) -> None:
        with self.lock:
            (self.sends if is_send else self.receives)[pair].append(op)
            if pair in self.lose:
                return
            while self.sends[pair] and self.receives[pair]:
                source, target = self.sends[pair].popleft(), self.receives[pair].popleft()
                assert source.size == target.size, f"{source.size} bytes meet a place for {target.size}"
                source.fake.check(source.address, source.size)
                target.fake.check(target.address, target.size)
                ctypes.memmove(target.address, source.address, source.size)
                if self.spoil:
                    ctypes.memset(target.address, 0x5A, 1)
                self.sizes[pair].append(source.size)
                source.done = target.done = True

    def forget(self, rank: int) -> None:
        with self.lock:
            for table in (self.sends, self.receives):
                for pair in list(table):
                    if rank in pair:
                        mine = pair[0] == rank if table is self.sends else pair[1] == rank
                        if mine:
                            table[pair].clear()


class Backend:
    """As ``torch.distributed.ProcessGroupNCCL``, as far as it is used."""

    def __init__(self, hub: Hub, rank: int, fake: FakeCuda) -> None:
        self.hub, self.rank, self.fake = hub, rank, fake
        self.aborted = self.closed = False
        self._batch: list[tuple[bool, int, torch.Tensor]] | None = None
        self._stream: int | None = None

    def _start_coalescing(self) -> None:
        assert self._batch is None
        self._batch = []

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> None:
        self._add(True, tensors, peer)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> None:
        self._add(False, tensors, peer)

    def _add(self, is_send: bool, tensors: list[torch.Tensor], peer: int) -> None:
        (tensor,) = tensors
        assert peer != self.rank
        assert tensor.numel() > 0
        assert self._batch is not None, "outside a group"
        self._batch.append((is_send, peer, tensor))

    def _end_coalescing(self) -> Work:
        batch, self._batch = self._batch, None
        assert batch
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        streams = self.fake._streams
        if self._stream is None:
            self._stream = self.fake.new_stream()
        work = Work(self, batch)
        if streams[_contexts.stream].captured is not None:
            work.captured = work.reached = True
            streams[_contexts.stream].put(work.begin_anew, work.is_through)
            return work
        streams[_contexts.stream].put(lambda: setattr(work, "reached", True))
        streams[self._stream].put(work.end, work.is_through)
        return work

    def abort(self) -> None:
        self.aborted = True
        self.hub.forget(self.rank)

    def shutdown(self) -> None:
        end = time.monotonic() + 5
        while self._stream is not None and self.fake._streams[self._stream].work and time.monotonic() < end:
            time.sleep(1e-3)
        self.closed = True


class Work:
    def __init__(self, backend: Backend, batch: list[tuple[bool, int, torch.Tensor]]) -> None:
        self.backend, self.batch = backend, batch
        self.reached = self.ended = self.captured = False
        self.ops: list[Op] = []

    def is_through(self) -> bool:
        if self.backend.aborted:
            return True
        if self.reached and not self.ops:
            for is_send, peer, tensor in self.batch:
                op = Op(self.backend.fake, tensor.data_ptr(), tensor.nbytes)
                self.ops.append(op)
                me = self.backend.rank
                self.backend.hub.post((me, peer) if is_send else (peer, me), op, is_send)
        return bool(self.ops) and all(op.done for op in self.ops)

    def end(self) -> None:
        self.ended = True

    def begin_anew(self) -> None:
        """A graph may be replayed."""
        self.ops = []

    def wait(self) -> None:
        if self.captured:  # a capture here is in one order
            return
        self.backend.fake._streams[_contexts.stream].put(lambda: None, lambda: self.ended)


class MachineRank(Rank):
    """A rank on one of several machines, and what moves its rows."""

    def __init__(self, world: World, fake: FakeCuda, timeout: float, channel: str) -> None:
        control = context.require_control()
        self.world, self.fake, self.control = world, fake, control
        self.program, self.rank = world.programs[control.rank], control.rank
        self.device = open_fake(fake)
        self.stream = _contexts.stream
        self.runtime = connect_runtime({"halo": self.program}, control, timeout, channel)
        try:
            self.exchange: Any = connect_device(
                {"halo": self.program}, control, timeout, self.device, self.runtime, channel
            )
        except BaseException:
            self.runtime.close()
            raise

    def close(self) -> None:
        self.exchange.close()
        self.runtime.close()


@contextmanager
def machines(numbers: Sequence[int], fakes: Sequence[FakeCuda], hub: Hub) -> Iterator[dict[int, Backend]]:
    """Within, threads whose ranks have different numbers are on different machines. Gives the backends made."""
    owners: dict[int, int] = {}
    stores: dict[str, Any] = {}
    counts: dict[tuple[str, int], int] = defaultdict(int)
    backends: dict[int, Backend] = {}
    made, opened = SegmentFile.__init__, PeerFile.__init__
    lock = threading.Lock()

    def make_file(self: SegmentFile) -> None:
        made(self)
        owners[self._descriptor] = _place.machine

    def open_file(self: PeerFile, handle: tuple[int, int]) -> None:
        if owners[handle[1]] != _place.machine:
            raise FileNotFoundError("it is on another machine")
        opened(self, handle)

    def store_of(kind: str, rank: int) -> Any:
        with lock:
            counts[kind, rank] += 1
            return stores.setdefault(f"{kind}-{counts[kind, rank]}", dist.HashStore())

    def new_group(self: ThreadControl) -> Any:
        store = store_of("gloo", self.rank)
        return dist.ProcessGroupGloo(store, self.rank, self.world_size, timedelta(seconds=60))

    class Nccl:
        Options = type("Options", (), {})

        def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
            assert options._timeout > timedelta(days=1)
            if rank == hub.refuses:
                raise ValueError("no GPUs found!")
            backends[rank] = Backend(hub, rank, fakes[rank])
            return backends[rank]

    with ExitStack() as stack:
        for patched in (
            patch.object(SegmentFile, "__init__", make_file),
            patch.object(PeerFile, "__init__", open_file),
            patch.object(ThreadControl, "new_group", new_group, create=True),
            patch.object(ThreadControl, "next_store", lambda self: store_of("nccl", self.rank), create=True),
            patch.object(ThreadControl, "timeout", 60.0, create=True),
            patch("dgcl.transport.connect.GroupControl", ThreadControl),
            patch.object(ThreadControl, "has_group", True),
            patch.object(dist, "is_nccl_available", lambda: True),
            patch.object(dist, "ProcessGroupNCCL", Nccl, create=True),
        ):
            stack.enter_context(patched)
        yield backends


def on_machines(
    world: World,
    numbers: Sequence[int],
    function: Callable[[Any], Any],
    *,
    hub: Hub | None = None,
    seed: int = 0,
    timeout: float = 20.0,
    channel: str = "auto",
    prepare: Callable[[list[FakeCuda]], None] = lambda fakes: None,
) -> tuple[list[Any], dict[int, Backend]]:
    """``function(rank)`` on every rank, a thread with a device of its own on the machine of its number.

    Returns:
        What the function returned, and the NCCL backends that were made.
    """
    memories = {number: Memory() for number in numbers}
    fakes = [FakeCuda(memories[number], seed + rank) for rank, number in enumerate(numbers)]
    prepare(fakes)

    def run() -> Any:
        number = context.require_control().rank
        _place.machine = numbers[number]
        rank = MachineRank(world, fakes[number], timeout, channel)
        try:
            result = function(rank)
            rank.fake.drain()
            return result
        except BaseException as error:
            rank.exchange.fail(CommError(f"rank {rank.rank}: stopped by {error!r}"))
            for trouble in rank.fake.errors[:1]:
                error.add_note(f"on the device: {trouble!r}")
            raise
        finally:
            rank.close()
            _contexts.current = 0

    with machines(numbers, fakes, hub or Hub()) as backends:
        try:
            results = dgcl.launch(run, world.world_size, timeout=60.0)
        finally:
            for fake in fakes:
                fake.stop()
    for fake in fakes:
        if fake.errors:
            raise fake.errors[0]
    return results, backends
