"""Ranks that are processes and stay, so that many tests share the seconds that starting them takes."""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

OURS = ["dgcl.build", "dgcl.nn", "tests.support.warm"]
PRELOAD = ["torch_geometric.nn", "dgl", *OURS]
DEADLINE = 300.0  # only a hang takes so long, however busy the machine


class RankPool:
    """``world_size`` processes in one Gloo group, on which ``dgcl.init()`` has been called.

    ``method`` is that of :mod:`multiprocessing`; by "spawn" ranks may use a GPU, and each hashes strings differently.
    """

    def __init__(self, world_size: int, method: str = "forkserver"):
        self.world_size, self._method = world_size, method
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of ``function(*args)`` on every rank, which must be importable by name.

        The first rank to fail fails the call, and the pool starts anew at the next one.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((function, args)))
        results: list[Any] = [None] * self.world_size
        waiting = dict(zip(self._pipes, range(self.world_size), strict=True))
        while waiting:
            ready = wait(list(waiting), timeout=DEADLINE)
            if not ready:
                self.close()
                raise AssertionError(f"ranks {sorted(waiting.values())} have not answered in {DEADLINE} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    good, value = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    good, value = False, "died"
                if not good:
                    self.close()
                    raise AssertionError(f"rank {rank}: {value}")
                results[rank] = value
        return results

    def close(self):
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self):
        """Start the processes; the pipes are in rank order."""
        # A server imports what ranks need and forks them; it runs nothing in parallel, so a fork is sound.
        context = multiprocessing.get_context(self._method)
        context.set_forkserver_preload(PRELOAD)
        self._folder = tempfile.TemporaryDirectory(prefix="dgcl-ranks-")
        address = f"file://{Path(self._folder.name) / 'store'}"
        for rank in range(self.world_size):
            here, there = context.Pipe()
            args = (rank, self.world_size, address, there)
            process = context.Process(target=serve, args=args, daemon=True)
            with mock.patch.dict(os.environ, PYTHONHASHSEED=str(rank)):  # a server has that of its first
                process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)


def serve(rank: int, world_size: int, address: str, pipe: Connection):
    """Be a rank: meet the others at an address of ``torch.distributed``, and do what comes down the pipe."""
    import torch
    import torch.distributed as dist

    import dgcl

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    dgcl.init()
    while True:
        try:
            function, args = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):  # the tests are over
            return
        try:
            answer = (True, function(*args))
        except Exception:  # whatever it is, the test shall show it
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))  # by value: a rank may share no memory with the tests
