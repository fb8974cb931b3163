"""Flags raised and waited for, by kernels or by the streams themselves."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import torch

from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_tables import (
    ABORT,
    FLAG,
    FLAG_THREADS,
    NUM_ENTERED,
    STATE_BYTES,
    Begin,
    SignalWait,
    records,
)
from tests.gpu.device import Gpu, Tables


class FlagRounds:
    """Rounds of "I raise yours, I wait for mine", all enqueued at once.

    Args:
        gpu: The device.
        way: "kernels" or "streams".
        own, other: Addresses of this process's flag and the other's.
        first: Whether this side raises before it waits.
    """

    ROUNDS: Final = 50

    def __init__(self, gpu: Gpu, way: str, *, own: int, other: int, first: bool) -> None:
        self._prepared = Prepared(gpu.driver)
        tables = Tables(gpu.device)
        words = np.zeros(STATE_BYTES // 8, np.int64)
        words[ABORT // 8] = tables.put(np.zeros(1, np.int64))
        state = tables.put(words)
        mine, theirs = (
            tables.put(records(FLAG, [{"address": address, "multiplier": 1}])) for address in (own, other)
        )
        self._tables = tables
        if way == "kernels":
            self._prepared.launch(gpu.kernels["begin"], 1, FLAG_THREADS, *Begin(state), *[0] * NUM_ENTERED)
            waits = SignalWait(state, awaited=mine, num_awaited=1)
            both = (
                waits._replace(raised=theirs, num_raised=1)
                if first
                else waits._replace(ended=theirs, num_ended=1)
            )
            self._prepared.launch(gpu.kernels["signal_wait"], 1, FLAG_THREADS, *both)
        elif first:
            self._prepared.write_value(other, 1, 0)
            self._prepared.wait_value(own, 1, 0)
        else:
            self._prepared.wait_value(own, 1, 0)
            self._prepared.write_value(other, 1, 0)

    def enqueue_one(self) -> None:
        """The first round, without waiting for its end."""
        self._prepared.enqueue([torch.cuda.current_stream().cuda_stream], 1)

    def run(self) -> float:
        """Seconds of a round."""
        stream = [torch.cuda.current_stream().cuda_stream]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for call in range(1, self.ROUNDS + 1):
            self._prepared.enqueue(stream, call)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / self.ROUNDS
