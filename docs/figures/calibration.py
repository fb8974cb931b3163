"""What calibration measured on this host for 2, 4 and 8 CPU ranks.

Takes two to three minutes; the host should have nothing else to do.
"""

from typing import Any

from dgcl.calibration import Effort, run_on_host
from dgcl.calibration.run import outcome_json
from docs.figures.framework import Figure, Run, machine

PAGE = "bench.md"


def summary(outcome: dict[str, Any]) -> list[Any]:
    """One row for a number of ranks."""
    core, memory = (
        {one["kind"]: one for one in outcome["classes"]}[kind] for kind in ("core", "memory (both ways)")
    )
    return [
        outcome["ranks"], core["bandwidth"], memory["bandwidth"], 1e6 * core["latency"], outcome["median_residual"],
    ]  # fmt: skip


def measured(run: Run) -> Figure:
    """A row for each number of ranks."""
    effort = Effort(seconds=0.01 if run.quick else 0.1)
    outcomes = (outcome_json(run_on_host(None, ranks, 512, effort)) for ranks in run.some((2, 4, 8)))
    columns = {
        "ranks": "", "one rank, GB/s": ".1f", "all together, GB/s": ".1f", "latency, us": ".0f",
        "residual of the fit": ".1%",
    }  # fmt: skip
    return Figure(columns, map(summary, outcomes), machine() + " Rows of 512 bytes.")


FIGURES = {"measured": measured}
