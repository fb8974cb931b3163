"""A Gloo group in the part of torch's NCCL backend, for ranks that are processes with devices of host memory."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.dgcl.transport.cuda.fake_cuda import FakeCuda, _contexts


class GlooAsNccl:
    """Groups of messages in a stream of the device; a thread waits for Gloo, as the device would."""

    Options = type("Options", (), {})

    def __init__(self, fake: FakeCuda, store: Any, rank: int, size: int) -> None:
        self._fake = fake
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
        self._batch: list[tuple[bool, int, torch.Tensor]] = []
        self.num_messages = 0

    def _start_coalescing(self) -> None:
        self._batch = []

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> None:
        self._batch.append((True, peer, tensors[0]))

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> None:
        self._batch.append((False, peer, tensors[0]))

    def _end_coalescing(self) -> Any:
        batch, over = self._batch, threading.Event()
        begun: list[threading.Thread] = []
        self.num_messages += len(batch)

        def exchange() -> None:
            works = [
                self._group.send([tensor], peer, 0) if is_send else self._group.recv([tensor], peer, 0)
                for is_send, peer, tensor in batch
            ]
            for work in works:
                work.wait()
            over.set()

        def is_over() -> bool:
            if not begun:
                begun.append(threading.Thread(target=exchange, daemon=True))
                begun[0].start()
            return over.is_set()

        self._fake._streams[_contexts.stream].put(lambda: None, is_over)
        return None  # it is in the caller's own stream

    def abort(self) -> None:
        pass

    def shutdown(self) -> None:
        pass
