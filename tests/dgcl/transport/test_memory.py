"""Memory of buffers: what a pool holds after calls is known without it, and does not grow with training."""

import numpy as np
import pytest
import torch

import dgcl
from dgcl.transport.buffer_memory import pool_bytes
from tests.support.small_machines import line


def _train(widths: list[int], epochs: int, channel: str) -> tuple[int, int]:
    """What the pool holds after exchanges that nobody keeps, and what was predicted."""
    edges = np.random.default_rng(3).integers(0, 6000, (2, 40000))
    comm = dgcl.build_comm_info(edges, line(3), part=np.arange(6000) % 3, channel=channel)
    for _ in range(epochs):
        for width in widths:
            comm.expand(torch.ones(comm.num_owned, width))
    program = comm.exchanges["halo"].program
    sizes = (program.num_local, program.num_relay)
    life = comm.transport.runtime if channel == "memory" else comm.transport.agreement
    predicted = pool_bytes([[4 * width * rows for rows in sizes] for width in widths] * 2)
    return life.pool.bytes_allocated, predicted


@pytest.mark.parametrize("channel", ["memory", "collective"])
def test_it_does_not_grow_with_calls(channel):
    few, many = (dgcl.launch(_train, 3, [200, 120, 300], epochs, channel) for epochs in (2, 10))
    assert few == many


def test_what_calls_take_is_predicted():
    for widths in ([200, 120, 300], [64, 300, 64]):
        for held, predicted in dgcl.launch(_train, 3, widths, 3, "memory"):
            assert abs(predicted - held) <= 0.02 * held + 4096
