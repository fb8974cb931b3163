"""``dgcl bench`` as a part of gpu-check: plans beside what people do without, and the targets that are set for them."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dgcl.gpu_check.launching import Say, launch
from dgcl.gpu_check.measurement import Size
from dgcl.gpu_check.programs import TOPOLOGY, make_edges

if TYPE_CHECKING:
    from dgcl.bench.problems import Problem
    from dgcl.bench.records import Line

#: Microseconds of host time that a call may take; how many times as fast as Gloo, and as torch's gather and copies,
#: an expand of a direct plan is to be.
HOST_TARGET: Final = 60.0
GLOO_TARGET: Final = 3.0
GATHER_TARGET: Final = 1.0

_METHODS: Final = ("direct", "spst", "gather", "gloo")
HEAD: Final = (
    "| ranks | method | float32 | forward ms | GB/s | of copy | backward ms | of copy | wrong "
    f"| host us, at most {HOST_TARGET:.0f} | times Gloo, at least {GLOO_TARGET:.0f} "
    f"| times gather, at least {GATHER_TARGET:.0f} |\n"
    "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def check_bench(size: Size, say: Say, device: str) -> tuple[Any, bool]:
    """``dgcl bench`` on this device: plans beside torch's gather and copies, Gloo, and NCCL where it runs."""
    from dgcl.bench.on_device.measure import measure_on_device
    from dgcl.bench.records import Case, Settings
    from dgcl.topology import resolve_topology

    say(HEAD)
    num_nodes = 1 << (14 if size.num_bytes < 1 << 30 else 18)
    found, good = [], True
    for count, methods in ((2, ("direct", "gather", "gloo")), (4, _METHODS), (8, _METHODS)):
        settings = Settings(
            methods=methods,
            topology=resolve_topology(TOPOLOGY if count == 8 else f"uniform:{count}", count),
            iterations=max(size.repeats, 2),
            warmup=3,
            timeout=60.0,
        )
        cases = [Case(partial(random_problem, count, num_nodes), (128, 602))]
        answers = launch(measure_on_device, count, cases, settings, only_words, device)
        if isinstance(answers, str):
            say(f"\n{count} ranks: failed: {answers}\n")
            found.append({"ranks": count, "failed": answers})
            good = False
            continue
        for width in (128, 602):
            lines = {line.method: line for line in answers[0].lines if line.width == width}
            for line in lines.values():
                text, reached = bench_row(count, line, lines)
                say(text)
                good &= reached
                found.append({"ranks": count, **dataclasses.asdict(line)})
    say("")
    return found, good


def bench_row(ranks: int, line: Line, others: dict[str, Line]) -> tuple[str, bool]:
    """A row of the table, and whether all is right and every target was reached that the line has."""
    wrong = line.forward.wrong + line.backward.wrong
    good = wrong == 0
    cells = [str(ranks), line.method, str(line.width), f"{1e3 * line.forward.median:.3f}"]
    cells += [f"{line.busbw(line.forward):.0f}", f"{line.forward.copy_seconds / line.forward.seconds:.2f}"]
    cells += [f"{1e3 * line.backward.median:.3f}"]
    cells += [f"{line.backward.copy_seconds / line.backward.seconds:.2f}", str(wrong) + " NO" * (wrong > 0)]
    if line.host_seconds is None:
        cells += ["", "", ""]
    else:
        host = 1e6 * line.host_seconds
        cells.append(f"{host:.0f}" + " MISSED" * (host > HOST_TARGET))
        good &= host <= HOST_TARGET
        for peer, target in (("gloo", GLOO_TARGET), ("gather", GATHER_TARGET)):
            if line.method != "direct" or peer not in others:
                cells.append("")
                continue
            faster = others[peer].forward.median / line.forward.median
            cells.append(f"{faster:.1f}" + " MISSED" * (faster < target))
            good &= faster >= target
    return "| " + " | ".join(cells) + " |", good


def random_problem(num_ranks: int, num_nodes: int) -> Problem:
    """The random graph of the other checks."""
    from dgcl.bench.problems import Problem
    from dgcl.graph import as_graph

    edges, part = make_edges(num_ranks, num_nodes)
    return Problem("random", as_graph(edges, num_nodes), part.astype(np.int32), num_ranks)


def only_words(record: object) -> None:
    """Lines come at the end; why a peer is left out is told at once."""
    if isinstance(record, str):
        sys.stdout.write(f"- {record}\n")
        sys.stdout.flush()
