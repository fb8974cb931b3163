"""Whole communicators on one GPU: ranks that are processes and share it by CUDA IPC, and ranks that are threads.

What the ranks do is in :mod:`tests.gpu.ranks`, which is also tried on the CPU (:mod:`tests.gpu.test_rank_checks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import dgcl
from tests.gpu import ranks as work
from tests.gpu.programs import make_programs

pytestmark = pytest.mark.gpu
Found = Callable[[dict[str, Any]], None]
_SECONDS: Final = 120.0
_MOST_RANKS: Final = 8

launch = partial(dgcl.launch, ranks="processes", timeout=_SECONDS)


def test_compile(found: Found) -> None:
    """Compile what the host runs, once for the other parts: planner, runtime, enqueuer."""
    for name, run in (
        ("plans", lambda: [make_programs(4, 1 << 10, method) for method in ("direct", "spst")]),
        ("exchanges", lambda: dgcl.launch(work.check_rank, 2, 1 << 7, "direct", "cpu")),
        ("folds of floats", lambda: dgcl.launch(work.precision_rank, 2, 1 << 7, "direct", "cpu")),
    ):
        start = time.perf_counter()
        run()
        found({f"{name}, s": round(time.perf_counter() - start, 1)})


@pytest.mark.parametrize("through_host", [False, True], ids=["", "through-the-host"])
@pytest.mark.parametrize(("count", "method"), [(2, "direct"), (4, "spst"), (8, "direct"), (8, "spst")])
def test_ranks(count: int, method: str, through_host: bool, device: str, found: Found) -> None:
    """Rows and gradients to the bit, peer to peer and in stages."""
    if through_host and count == _MOST_RANKS:
        pytest.skip("shown by fewer ranks")
    answers = launch(work.check_rank, count, 1 << 13, method, device, through_host)
    assert work.wrong_kinds(answers) == []
    found({"right kinds of rows": len(answers[0])})


@pytest.mark.parametrize("count", [2, 4])
def test_threads(count: int, device: str) -> None:
    answers = launch(work.check_rank, count, 1 << 13, "direct", device, ranks="threads")
    assert work.wrong_kinds(answers) == []


@pytest.mark.parametrize(("count", "method"), [(2, "direct"), (4, "spst")])
def test_precision(count: int, method: str, device: str, found: Found) -> None:
    """The largest error of folds of 16-bit floats against float64, as a share of what is allowed."""
    answers = launch(work.precision_rank, count, 1 << 12, method, device)
    shares = work.largest_shares(answers)
    found(shares)
    assert all(0.0 < share <= 1.0 for share in shares.values())


def test_hosts(device: str) -> None:
    """Ranks that act as if they shared no memory: from the device through the host and the network."""
    answers = launch(work.network_rank, 2, 1 << 12, device)
    assert work.wrong_kinds(answers) == []


@pytest.mark.parametrize("which", ["two-ranks", "one-for-each-gpu"])
def test_nccl(which: str, device: str) -> None:
    """From device to device by NCCL; skipped where ranks must share a GPU and NCCL refuses, with its words."""
    num_devices = torch.cuda.device_count()
    count = 2 if which == "two-ranks" else min(num_devices, _MOST_RANKS)
    if which == "one-for-each-gpu" and count <= 2:
        pytest.skip(f"{num_devices} GPU(s): the same as two ranks")
    try:
        answers = launch(work.network_rank, count, 1 << 12, device, "nccl")
    except Exception as error:
        words = " ".join([str(error), *getattr(error, "__notes__", [])])
        if 'channel="nccl" cannot be had' in words and num_devices < count:
            pytest.skip(f"{count} ranks on {num_devices} GPU(s): {words}")
        raise
    assert work.wrong_kinds(answers) == []


def test_calibrate(device: str, found: Found) -> None:
    """Two ranks' links, measured through communicators on this device, and two plans predicted."""
    from dgcl.calibration import Effort
    from dgcl.calibration.run import outcome_json, run_rank

    effort = Effort(seconds=0.02, least=8, most=40, rounds=1)
    answers = launch(run_rank, 2, None, 512, 2, effort, None, device)
    outcome = outcome_json(answers[0])
    for one in outcome["classes"]:
        found({one["kind"]: f"{one['bandwidth']:.4g} GB/s, {1e6 * one['latency']:.3g} us"})
    found({name: f"{outcome[name]:.1%}" for name in ("median_residual", "median_error")})


@pytest.mark.parametrize("kind", list(work.FAULTS))
def test_faults(kind: str, device: str, found: Found, tmp_path: Path) -> None:
    """What the others say of a rank that is late, or is killed, and whether the device goes on."""
    texts = work.fault_reports(kind, tmp_path, device)
    found({f"rank {rank}": text for rank, text in enumerate(texts)})
    assert all(work.FAULTS[kind] in text and "works on" in text for text in texts)


def test_capture(device: str, found: Found) -> None:
    answers = launch(work.graph_rank, 2, device)
    found(answers[0])
    assert all(answer["three replays right"] for answer in answers)
