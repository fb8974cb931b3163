"""Ranks that are processes and may be killed, stopped and continued while they work."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.rank_pool import PRELOAD

DEADLINE = 60.0
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A port for a store, below those that systems give to connections: nobody takes it until the store listens."""
    while True:
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", random.SystemRandom().randrange(10_000, 30_000)))
            return int(one.getsockname()[1])


class Ranks:
    """``world_size`` processes that run ``function(channel, *args)`` after ``dgcl.init()``.

    What a rank sends into its channel is received by :meth:`told`; when its function returns or raises,
    its communicators are closed as :func:`dgcl.launch` does, and it ends.
    """

    def __init__(self, world_size: int, function: Callable[..., Any], *args: Any):
        self._folder = tempfile.TemporaryDirectory(prefix="dgcl-ranks-")
        store = str(Path(self._folder.name) / "store")
        self.processes, self._channels = [], []
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        for rank in range(world_size):
            here, there = context.Pipe()
            task = (rank, world_size, store, there, function, args)
            process = context.Process(target=_main, args=task, daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self._channels.append(here)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ):
        for process in self.processes:
            process.kill()
            process.join()
        for channel in self._channels:
            channel.close()
        self._folder.cleanup()

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to a rank's process; when."""
        pid = self.processes[rank].pid
        assert pid is not None
        now = time.monotonic()
        os.kill(pid, number)
        return now

    def told(self, ranks: list[int] | None = None, deadline: float = DEADLINE) -> dict[int, Any]:
        """The next thing that each of these ranks sends, within ``deadline`` seconds of the last."""
        wanted = {self._channels[rank]: rank for rank in ranks or range(len(self._channels))}
        said: dict[int, Any] = {}
        while wanted:
            ready = wait(list(wanted), timeout=deadline)
            assert ready, f"ranks {sorted(wanted.values())} have said nothing for {deadline:g} s"
            for channel in ready:
                assert isinstance(channel, Connection)
                rank = wanted.pop(channel)
                try:
                    said[rank] = channel.recv()
                except EOFError:
                    raise AssertionError(f"rank {rank} is dead") from None
        return said

    def tell(self, what: Any, ranks: list[int] | None = None):
        """Send something to these ranks."""
        for rank in ranks or range(len(self._channels)):
            self._channels[rank].send(what)


def _main(
    rank: int, world_size: int, store: str, channel: Connection, function: Callable[..., Any], args: Any
):
    import torch
    import torch.distributed as dist

    import dgcl
    from dgcl.ranks.launcher import _run_rank

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the server's end is that of the tests
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    dgcl.init(timeout=DEADLINE)
    try:
        _run_rank(function, (channel, *args))
    except Exception as error:
        channel.send(("ended by", type(error).__name__, str(error)))
    finally:
        os._exit(0)  # at once: a group whose members were killed does not part in order


def describe(error: BaseException) -> tuple[str, str, float]:
    """An error for the channel: its class, its text, and when it was raised."""
    return type(error).__name__, str(error), time.monotonic()
