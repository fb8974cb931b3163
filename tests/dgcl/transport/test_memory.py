"""``comm.memory()`` predicts what the pool really holds after training."""

import numpy as np
import pytest
import torch

import dgcl
import dgcl.nn
from dgcl.transport.buffer_memory import MemoryReport
from tests.planner.machines import line
from tests.samples import slow

PAGE = 4096


def _graph() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 6000, (2, 40000))


def _train(
    widths: list[int],
    input_grad: bool,
    constants: int,
    dtype: torch.dtype,
    epochs: int,
    wire: torch.dtype | None = None,
) -> tuple[int, MemoryReport]:
    """What the pool holds after training, and what was predicted."""
    part = np.arange(6000) % 3
    comm = dgcl.build_comm_info(_graph(), line(3), part=part, wire=wire)
    held = [comm.dispatch_features(torch.ones(6000, constants, dtype=dtype), halo=True)] if constants else []
    graph = comm.local_graph("csr")
    layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in zip(widths, [*widths[1:], 3], strict=True))
    layers.to(dtype)
    x = torch.randn(comm.num_owned, widths[0], dtype=dtype, requires_grad=input_grad)
    for _ in range(epochs):
        h, x.grad = x, None
        for layer in layers:
            h = graph.sum(layer(dgcl.graph_allgather(h)))
        h.sum().backward()
        del h
    constant = [constants] if constants else []
    predicted = comm.memory(widths, dtype, input_grad=input_grad, constants=constant)
    assert len(held) == len(constant)
    return comm.transport.runtime.pool.bytes_allocated, predicted


@pytest.mark.parametrize(
    "widths, input_grad, constants, dtype, wire",
    [
        slow([200, 120, 300], False, 0, torch.float32, None),
        ([200, 120, 300], True, 0, torch.float32, None),
        ([200, 120, 300], True, 50, torch.float32, torch.bfloat16),
        slow([300, 64], False, 0, torch.float64, None),
        ([64, 300, 64, 300], False, 150, torch.float32, None),
        slow([500], False, 0, torch.float32, None),
    ],
)
def test_within_two_percent(widths, input_grad, constants, dtype, wire):
    for found, predicted in dgcl.launch(_train, 3, widths, input_grad, constants, dtype, 3, wire):
        assert abs(predicted.pool - found) <= 0.02 * found
        assert predicted.total == predicted.pool + predicted.tables + predicted.control_page


@pytest.mark.slow
def test_no_growth():
    few, many = (dgcl.launch(_train, 3, [200, 120], False, 0, torch.float32, n) for n in (2, 40))
    assert [held for held, _ in few] == [held for held, _ in many]


def _parts() -> tuple[MemoryReport, dict[str, int]]:
    part = np.arange(6000) % 3
    comm = dgcl.build_comm_info(_graph(), line(3), part=part)
    program = comm.exchanges["halo"].program
    sizes = {
        "local": program.num_local,
        "owned": program.num_owned,
        "relay": program.num_relay,
        "sent": int(program.expand.send_count.sum()),
    }
    return comm.memory([100, 50], torch.float16), sizes


def test_the_parts_are_rows_times_bytes():
    reports = dgcl.launch(_parts, 3)
    assert any(rows["relay"] > 0 for _, rows in reports)
    for report, rows in reports:
        assert report.results == rows["local"] * 150 * 2
        assert report.relay == rows["relay"] * 100 * 2
        assert report.gradients == (rows["sent"] + rows["owned"]) * 50 * 2
        assert report.control_page == PAGE
        assert report.constants == 0


def test_inference_takes_less():
    def reports() -> tuple[int, int]:
        comm = dgcl.build_comm_info(_graph(), "uniform", part=np.arange(6000) % 2)
        return comm.memory([500, 500], training=False).pool, comm.memory([500, 500]).pool

    for inference, training in dgcl.launch(reports, 2):
        assert inference < training


@pytest.mark.parametrize("widths", [[-1], [2.5], ["a"]])
def test_bad_widths(widths):
    def ask():
        dgcl.build_comm_info(_graph(), "uniform", part=np.zeros(6000, int)).memory(widths)

    with pytest.raises(ValueError, match="widths must be numbers of elements"):
        dgcl.launch(ask, 1)
