"""The ranks of a loopback on a GPU: each on a stream of its own, waiting for each other on the device."""

from __future__ import annotations

import time

import torch

from dgcl.kernels.cuda_launch import Prepared
from tests.gpu.device import Gpu
from tests.gpu.loopback import Loopback


class Streams:
    """Enqueues calls of all ranks.

    Streams may share a queue of the device, in which a waiting kernel holds up what comes behind it. So
    ranks are enqueued stage by stage: what somebody waits for always comes earlier.
    """

    def __init__(self, gpu: Gpu, loopback: Loopback) -> None:
        self._streams = [torch.cuda.Stream(gpu.device) for _ in loopback.ranks]
        self._parts: dict[int, list[tuple[int, Prepared]]] = {}
        for verb, lists in loopback.launches.items():
            self._parts[verb] = []
            for stage in sorted({launch.stage for launches in lists for launch in launches}):
                for rank, launches in enumerate(lists):
                    part = Prepared(gpu.driver)
                    for launch in launches:
                        if launch.stage == stage:
                            kernel = gpu.kernels[launch.kernel]
                            part.launch(kernel, launch.blocks, launch.threads, *launch.parameters)
                    self._parts[verb].append((rank, part))

    def run(self, loopback: Loopback, verb: int) -> None:
        """One call of all ranks; waits for its end."""
        torch.cuda.synchronize()
        self.enqueue(verb)
        torch.cuda.synchronize()

    def enqueue(self, verb: int) -> list[float]:
        """One call of all ranks, after what the current stream has done and before what it does next.

        Returns:
            Seconds that enqueueing each rank's part took the host.
        """
        current = torch.cuda.current_stream()
        handles = [[stream.cuda_stream] for stream in self._streams]
        for stream in self._streams:
            stream.wait_stream(current)
        seconds = [0.0 for _ in self._streams]
        for rank, part in self._parts[verb]:
            start = time.perf_counter()
            part.enqueue(handles[rank])
            seconds[rank] += time.perf_counter() - start
        for stream in self._streams:
            current.wait_stream(stream)
        return seconds

    def num_operations(self, verb: int) -> int:
        """How many operations the busiest rank enqueues."""
        counts = [0 for _ in self._streams]
        for rank, part in self._parts[verb]:
            counts[rank] += len(part)
        return max(counts)
