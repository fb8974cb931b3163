"""Ranks on hosts that stay, so that many tests share the seconds that starting them takes.

Each host runs this module once, in namespaces of its own: it imports what ranks need, forks the host's ranks and
waits for them. The pipes to the ranks are inherited by way of it.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tests.dgcl.multihost.hosts import PORT, ROOT, Hosts, environment
from tests.support.rank_pool import OURS, PRELOAD, RankPool, serve

MODULE = "tests.dgcl.multihost.host_pool"
_NAMESPACES = Path("/run/netns")  # where ``ip netns`` keeps them
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class HostPool(RankPool):
    """``ranks[h]`` ranks on host h, in one Gloo group, on which ``dgcl.init()`` has been called.

    Args:
        ranks: How many on each host; ranks are numbered host by host.
        megabytes: MB/s that a card carries each way; None: no limit.
        cards: For each rank of a host the card that it uses; None: all the same one.

    Ranks behind a limit measure rows and train nothing: they do without the frameworks, which take seconds to import.
    """

    def __init__(
        self, ranks: Sequence[int], megabytes: float | None = None, cards: Sequence[int] | None = None
    ):
        super().__init__(sum(ranks))
        self.ranks, self.megabytes = list(ranks), megabytes
        self.card_of_rank = list(cards or [0] * max(ranks))
        self.host_of_rank = [host for host, count in enumerate(ranks) for _ in range(count)]
        self.hosts: Hosts | None = None

    def close(self):
        """End the ranks, and take the hosts away."""
        for process in self._processes:
            process.kill()  # unshare --kill-child takes what runs on the host with it
            process.wait()
        self._processes = []
        super().close()
        if self.hosts is not None:
            self.hosts.__exit__(None, None, None)
            self.hosts = None

    def _start(self):
        self.hosts = Hosts(len(self.ranks), self.megabytes, max(self.card_of_rank) + 1).__enter__()
        address = f"tcp://{self.hosts.address(0)}:{PORT}"
        preload = ",".join(PRELOAD if self.megabytes is None else OURS)
        for host, count in enumerate(self.ranks):
            there: list[Connection] = []
            places = []
            for position in range(count):
                pipes = multiprocessing.Pipe()
                there.append(pipes[1])
                card = self.card_of_rank[position]
                places.append(f"{len(self._pipes)}:{pipes[1].fileno()}:{self.hosts.namespace(host, card)}")
                self._pipes.append(pipes[0])
            self._processes.append(
                subprocess.Popen(
                    self.hosts.command(
                        host,
                        [sys.executable, "-m", MODULE, address, str(self.world_size), preload, *places],
                    ),
                    cwd=ROOT,
                    env=environment(),
                    pass_fds=[pipe.fileno() for pipe in there],
                )
            )
            for pipe in there:
                pipe.close()


def main():
    """On a host: ``ADDRESS WORLD_SIZE MODULES RANK:PIPE:NAMESPACE ...``; returns when all ranks have ended."""
    address, world_size, preload, *places = sys.argv[1:]
    ranks = [place.split(":") for place in places]
    for name in preload.split(","):  # what is not installed is not tested
        if importlib.util.find_spec(name.split(".")[0]) is not None:
            importlib.import_module(name)
    children = []
    for rank, pipe, namespace in ranks:
        child = os.fork()  # nothing has run in parallel yet
        if child == 0:
            _be_rank(int(rank), int(world_size), address, int(pipe), namespace, [int(p) for _, p, _ in ranks])
        children.append(child)
    for _, pipe, _ in ranks:
        os.close(int(pipe))  # a rank that dies closes the last end
    for child in children:
        os.waitpid(child, 0)


def _be_rank(rank: int, world_size: int, address: str, pipe: int, namespace: str, pipes: Sequence[int]):
    """In a process of its own: go to the card's network, and serve until the tests are over."""
    try:
        for other in pipes:
            if other != pipe:
                os.close(other)
        network = os.open(_NAMESPACES / namespace, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(network, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        os.close(network)
        serve(rank, world_size, address, Connection(pipe))
    except (
        BaseException
    ):  # to be seen among the output of the tests, and never to return into the loop of main
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
