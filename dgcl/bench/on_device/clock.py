"""Times a rank's enqueued work by CUDA events, or by the host's clock without a stream."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Clock:
    """Times runs on a device.

    Args:
        device: Of the rows.
        finish: Waits until everything that was enqueued is done.
    """

    def __init__(self, device: torch.device, finish: Callable[[], None]) -> None:
        self._on_gpu = device.type == "cuda"
        self._finish = finish

    def seconds(self, run: Callable[[], object]) -> float:
        """Time ``run`` from the end of earlier enqueued work to its own end; waits for that."""
        if not self._on_gpu:
            self._finish()
            start = time.perf_counter()
            run()
            self._finish()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        self._finish()
        return begin.elapsed_time(end) * 1e-3

    def host_seconds(self, run: Callable[[], object]) -> float:
        """Time ``run`` on the host while the device is idle."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self._finish()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
