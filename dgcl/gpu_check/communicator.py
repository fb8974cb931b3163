"""Whole communicators on one GPU: ranks that are processes and share it by CUDA IPC, and ranks that are threads.

Every check takes how much to do, where to say it, and the device; what its ranks do is in
:mod:`dgcl.gpu_check.ranks`. One configuration that fails is told and does not keep the others from running.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import dgcl
from dgcl.gpu_check import ranks as work
from dgcl.gpu_check.measurement import Size

Say = Callable[[str], object]
Check = Callable[[Size, Say, str], tuple[Any, bool]]

#: Microseconds of host time that a call may take; how much faster than Gloo an expand is to be.
HOST_TARGET: Final = 60.0
GLOO_TARGET: Final = 3.0
_LAUNCH_SECONDS: Final = 120.0


def _launch(
    function: Callable[..., Any], count: int, *args: Any, ranks: Literal["threads", "processes"] = "processes"
) -> list[Any] | str:
    """What each rank found; a line where it could not be done."""
    try:
        return dgcl.launch(function, count, *args, ranks=ranks, timeout=_LAUNCH_SECONDS)
    except Exception as error:  # told in the report; the other configurations still count
        notes = " ".join(getattr(error, "__notes__", []))
        return " ".join(f"{type(error).__name__}: {error} {notes}".split())[:1500]


def check_ranks(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Rows and gradients of 2, 4 and 8 processes, to the bit, peer to peer and in stages."""
    found = {}
    for count, method, through_host in (
        *((count, method, False) for count in (2, 4, 8) for method in ("direct", "spst")),
        (2, "direct", True),
        (4, "spst", True),
    ):
        name = f"{count} processes, {method}" + ", through the host" * through_host
        found[name] = _told(_launch(work.check_rank, count, 1 << 13, method, device, through_host))
        say(f"- {name}: {found[name]}")
    return found, all(answer.startswith("right") for answer in found.values())


def check_threads(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """The same for ranks that are threads of one process, each on a stream of its own."""
    found = {}
    for count in (2, 4):
        answer = _launch(work.check_rank, count, 1 << 13, "direct", device, ranks="threads")
        found[f"{count} threads"] = _told(answer)
        say(f"- {count} threads: {found[f'{count} threads']}")
    return found, all(answer.startswith("right") for answer in found.values())


def _told(answers: list[dict[str, bool]] | str) -> str:
    if isinstance(answers, str):
        return f"failed: {answers}"
    wrong = sorted({name for answer in answers for name, right in answer.items() if not right})
    return f"wrong: {', '.join(wrong)}" if wrong else f"right, {len(answers[0])} kinds of rows"


def check_speeds(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """Expand and fold of processes, beside torch's gather and copies, and Gloo through the host."""
    say(
        "| plan | ranks | float32 | expand ms | GB/s | fold ms | gather and copy ms | Gloo ms "
        f"| host us, at most {HOST_TARGET:.0f} | times Gloo, at least {GLOO_TARGET:.0f} |"
    )
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    num_nodes = 1 << (15 if size.num_bytes < 1 << 30 else 19)
    found, good = [], True
    for count in (2, 4, 8):
        for method, width in (("direct", 128), ("direct", 602), ("spst", 128)):
            answers = _launch(work.speed_rank, count, num_nodes, method, width, size.repeats, device)
            if isinstance(answers, str):
                say(f"\n{method}, {count} ranks, {width}: failed: {answers}\n")
                found.append({"method": method, "ranks": count, "width": width, "failed": answers})
                good = False
                continue
            line = answers[0]
            host = max(answer["host us of expand"] for answer in answers)
            theirs = line.get("gloo")
            faster = None if theirs is None else theirs / line["expand"]
            cells = [
                method,
                str(count),
                str(width),
                f"{1e3 * line['expand']:.3f}",
                f"{1e-9 * line['bytes'] / line['expand']:.0f}",
                f"{1e3 * line['fold']:.3f}",
                f"{1e3 * line['gather and copy']:.3f}" if "gather and copy" in line else "",
                "" if theirs is None else f"{1e3 * theirs:.3f}",
                f"{host:.0f}" + (" MISSED" if host > HOST_TARGET else ""),
                "" if faster is None else f"{faster:.1f}" + (" MISSED" if faster < GLOO_TARGET else ""),
            ]
            say("| " + " | ".join(cells) + " |")
            found.append({"method": method, "ranks": count, "width": width, **line, "host us": host})
            good &= host <= HOST_TARGET and (faster is None or faster >= GLOO_TARGET)
            good &= all(answer.get("gloo agrees", 1.0) == 1.0 for answer in answers)
    say("")
    return found, good


def check_faults(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """A rank that is late, and one that is killed: what the others say, and whether the device goes on."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, wanted in (("late", "CommTimeoutError"), ("dies", "PeerLostError")):
            _launch(work.fault_rank, 3, kind, folder, device)
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
    answers = _launch(work.graph_rank, 2, device)
    say(f"- {answers}")
    return answers, not isinstance(answers, str) and all(answer["three replays right"] for answer in answers)


#: All checks, by name.
CHECKS: Final[dict[str, Check]] = {
    "ranks": check_ranks,
    "threads": check_threads,
    "speeds": check_speeds,
    "faults": check_faults,
    "capture": check_capture,
}
