"""The lines of ``dgcl bench --device cuda`` held against the targets that are set for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tests.gpu.programs import make_edges

if TYPE_CHECKING:
    from dgcl.bench.problems import Problem
    from dgcl.bench.records import Line

#: Microseconds of host time that a call may take; how many times as fast as Gloo, and as torch's gather and copies,
#: an expand of a direct plan is to be.
HOST_TARGET: Final = 60.0
GLOO_TARGET: Final = 3.0
GATHER_TARGET: Final = 1.0

HEAD: Final = (
    "| ranks | method | float32 | forward ms | GB/s | of copy | backward ms | of copy | wrong "
    f"| host us, at most {HOST_TARGET:.0f} | times Gloo, at least {GLOO_TARGET:.0f} "
    f"| times gather, at least {GATHER_TARGET:.0f} |\n"
    "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def bench_row(ranks: int, line: Line, others: dict[str, Line]) -> tuple[str, bool]:
    """A row of the table, and whether all is right and every target was reached that the line has."""
    wrong = line.forward.wrong + line.backward.wrong
    good = wrong == 0
    cells = [str(ranks), line.method, str(line.width), f"{1e3 * line.forward.median:.3f}"]
    cells += [f"{line.written(line.forward):.0f}", f"{line.forward.copy_seconds / line.forward.seconds:.2f}"]
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
