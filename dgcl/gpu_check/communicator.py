"""Whole communicators on one GPU: ranks that are processes and share it by CUDA IPC, and ranks that are threads.

Every check takes how much to do, where to say it, and the device; what its ranks do is in
:mod:`dgcl.gpu_check.ranks`. One configuration that fails is told and does not keep the others from running.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from dgcl.gpu_check import ranks as work
from dgcl.gpu_check.bench_check import check_bench
from dgcl.gpu_check.launching import Say, launch
from dgcl.gpu_check.measurement import Size

_MOST_RANKS: Final = 8

Check = Callable[[Size, Say, str], tuple[Any, bool]]


def check_ranks(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Rows and gradients of 2, 4 and 8 processes, to the bit, peer to peer and in stages."""
    found = {}
    for count, method, through_host in (
        (2, "direct", False),
        (4, "spst", False),
        (8, "direct", False),
        (8, "spst", False),
        (2, "direct", True),
        (4, "spst", True),
    ):
        name = f"{count} processes, {method}" + ", through the host" * through_host
        found[name] = _told(launch(work.check_rank, count, 1 << 13, method, device, through_host))
        say(f"- {name}: {found[name]}")
    return found, all(answer.startswith("right") for answer in found.values())


def check_threads(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """The same for ranks that are threads of one process, each on a stream of its own."""
    found = {}
    for count in (2, 4):
        answer = launch(work.check_rank, count, 1 << 13, "direct", device, ranks="threads")
        found[f"{count} threads"] = _told(answer)
        say(f"- {count} threads: {found[f'{count} threads']}")
    return found, all(answer.startswith("right") for answer in found.values())


def _told(answers: list[dict[str, bool]] | str) -> str:
    if isinstance(answers, str):
        return f"failed: {answers}"
    wrong = sorted({name for answer in answers for name, right in answer.items() if not right})
    return f"wrong: {', '.join(wrong)}" if wrong else f"right, {len(answers[0])} kinds of rows"


def check_precision(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Folds of 16-bit floats against float64: the largest error as a share of what is allowed."""
    found: dict[str, Any] = {}
    for count, method in ((2, "direct"), (4, "spst")):
        name = f"{count} processes, {method}"
        answers = launch(work.precision_rank, count, 1 << 12, method, device)
        if isinstance(answers, str):
            found[name] = f"failed: {answers}"
        else:
            found[name] = {kind: max(answer[kind] for answer in answers) for kind in answers[0]}
        say(f"- {name}: {found[name]}")
    shares = [each.values() if isinstance(each, dict) else [2.0] for each in found.values()]
    return found, all(0.0 < share <= 1.0 for several in shares for share in several)


def check_hosts(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Rows of ranks that share no memory, or act so: from the device through the host and the network."""
    answer = _told(launch(work.network_rank, 2, 1 << 12, device))
    say(f"- 2 processes, by the network channel: {answer}")
    return {"2 processes": answer}, answer.startswith("right")


def check_nccl(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Rows from device to device by NCCL, as between machines: of two ranks, and of one for each GPU if there are more.

    NCCL refuses ranks that share a GPU, but for versions that are told otherwise; that it refuses is no fault."""
    found = {}
    for count in sorted({2, max(2, min(torch.cuda.device_count(), _MOST_RANKS))}):
        answer = _told(launch(work.network_rank, count, 1 << 12, device, "nccl"))
        if 'channel="nccl" cannot be had' in answer and torch.cuda.device_count() < count:
            answer = f"skipped: {count} ranks on {torch.cuda.device_count()} GPU(s): {answer}"
        found[f"{count} processes"] = answer
        say(f"- {count} processes, by NCCL: {answer}")
    return found, all(answer.startswith(("right", "skipped")) for answer in found.values())


def check_calibrate(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Two ranks' links, measured by the channels of communicators on this device, and two plans predicted."""
    from dgcl.calibration import Effort
    from dgcl.calibration.run import outcome_json, run_rank

    effort = Effort(seconds=0.02, least=8, most=40, rounds=1)
    answers = launch(run_rank, 2, None, 512, 2, effort, None, device)
    if isinstance(answers, str):
        say(f"- failed: {answers}")
        return {"failed": answers}, False
    told = outcome_json(answers[0])
    for one in told["classes"]:
        say(f"- {one['kind']}: {one['bandwidth']:.4g} GB/s, {1e6 * one['latency']:.3g} us")
    say(f"- median residual {told['median_residual']:.1%}, median error of plans {told['median_error']:.1%}")
    return told, True


def check_faults(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """A rank that is late, and one that is killed: what the others say, and whether the device goes on."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, wanted in (("late", "CommTimeoutError"), ("dies", "PeerLostError")):
            launch(work.fault_rank, 3, kind, folder, device)
            for rank in range(2):
                told = Path(folder, f"{kind}-{rank}")
                text = told.read_text() if told.is_file() else "never returned"
                found[f"{kind}, rank {rank}"] = text
                say(f"- {kind}, rank {rank} (wanted: {wanted}): {text}")
    good = all(
        ("CommTimeoutError" if name.startswith("late") else "PeerLostError") in text and "works on" in text
        for name, text in found.items()
    )
    return found, good


def check_capture(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """A step of two processes, captured and replayed."""
    answers = launch(work.graph_rank, 2, device)
    say(f"- {answers}")
    return answers, not isinstance(answers, str) and all(answer["three replays right"] for answer in answers)


#: All checks, by name.
CHECKS: Final[dict[str, Check]] = {
    "ranks": check_ranks,
    "threads": check_threads,
    "bench": check_bench,
    "precision": check_precision,
    "faults": check_faults,
    "capture": check_capture,
    "hosts": check_hosts,
    "nccl": check_nccl,
    "calibrate": check_calibrate,
}
