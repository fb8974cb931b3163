"""The ranks of a loopback on a GPU: each on a stream of its own, waiting for each other on the device."""

import torch

from dgcl.kernels.cuda_launch import Prepared
from tests.dgcl.transport.cuda.loopback import Loopback
from tests.support.gpu_device import Gpu


class Streams:
    """Enqueues calls of all ranks."""

    def __init__(self, gpu: Gpu, loopback: Loopback):
        self._streams = [torch.cuda.Stream(gpu.device) for _ in loopback.ranks]
        self._calls: dict[int, list[Prepared]] = {}
        for verb, lists in loopback.launches.items():
            self._calls[verb] = [Prepared(gpu.driver) for _ in lists]
            for call, launches in zip(self._calls[verb], lists, strict=True):
                for launch in launches:
                    kernel = gpu.kernels[launch.kernel]
                    call.launch(kernel, launch.blocks, launch.threads, *launch.parameters)

    def run(self, loopback: Loopback, verb: int):
        """One call of all ranks; waits for its end."""
        torch.cuda.synchronize()
        for stream, call in zip(self._streams, self._calls[verb], strict=True):
            call.enqueue(stream.cuda_stream)
        torch.cuda.synchronize()
