"""Whole exchanges of ranks that are streams of one process: right, fast, cheap for the host, and repeatable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dgcl.kernels.cuda_shapes import THREADS
from dgcl.transport.cuda.program import EXPAND
from tests.gpu.device import Gpu
from tests.gpu.exchange_speed import HEAD, measure_exchange
from tests.gpu.loopback import connect
from tests.gpu.programs import make_programs
from tests.gpu.row_speed import Size, copy_speed
from tests.gpu.streams import Streams

pytestmark = pytest.mark.gpu
NUM_NODES = 1 << 20


@pytest.mark.parametrize("method", ["direct", "spst"])
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_exchange_of_streams(
    gpu: Gpu, size: Size, num_ranks: int, method: str, say: Callable[[str], None], found: Any
) -> None:
    copy = copy_speed(gpu, size)
    programs = make_programs(num_ranks, NUM_NODES, method)

    def max_blocks(kernel: str) -> int:
        return max(gpu.kernels.blocks_at_once(gpu.kernels[kernel], THREADS) // num_ranks, 1)

    say(f"\n{HEAD}")
    lines = []
    for width in (128, 602):
        loopback = connect(programs, width, torch.float32, gpu.device, max_blocks, THREADS)
        for line in measure_exchange(gpu, loopback, Streams(gpu, loopback), size, method, copy):
            say(str(line))
            lines.append(line)
        del loopback  # many gigabytes
    found({"lines": [line.to_json() for line in lines]})
    assert [str(line) for line in lines if not line.good] == []


def test_a_captured_exchange_counts_its_calls(gpu: Gpu) -> None:
    programs = make_programs(4, 1 << 14, "spst")
    loopback = connect(
        programs, 64, torch.float32, gpu.device, lambda name: gpu.kernels.num_multiprocessors, 256
    )
    streams = Streams(gpu, loopback)
    streams.run(loopback, EXPAND)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        streams.enqueue(EXPAND)
    for rank in loopback.ranks:
        owned = rank.program.num_owned
        rank.local[:owned] = torch.from_numpy(rank.program.owned_ids).to(gpu.device)[:, None].float()
        rank.local[owned:] = -1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    loopback.check(4)
    for rank in loopback.ranks:
        ids = np.concatenate([rank.program.owned_ids, rank.program.halo_ids])
        assert (rank.local[:, 0].cpu().long().numpy() == ids).all()
