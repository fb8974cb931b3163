"""What calibration measured on this host for 2, 4 and 8 CPU ranks, and how well it predicts plans it has not seen.

Takes two to three minutes; the host should have nothing else to do.
"""

from typing import Any

from dgcl.calibration.effort import Effort
from dgcl.calibration.run import outcome_json, run_on_host
from docs.figures.framework import Figure, Run, machine

PAGE = "calibration.md"


def summary(outcome: dict[str, Any]) -> list[Any]:
    """One row for a number of ranks."""
    core, memory = (
        {one["kind"]: one for one in outcome["classes"]}[kind] for kind in ("core", "memory (both ways)")
    )
    return [
        outcome["ranks"], core["bandwidth"], memory["bandwidth"], 1e6 * core["latency"], outcome["median_residual"],
        outcome["median_error"], max(abs(one["error"]) for one in outcome["checked"]),
    ]  # fmt: skip


def measured(run: Run) -> list[Figure]:
    """The summary, then for each number of ranks what senders get at once, and unseen plans."""
    effort, checks = Effort(seconds=0.01 if run.quick else 0.1), 2 if run.quick else 10
    outcomes = [outcome_json(run_on_host(None, ranks, 512, checks, effort)) for ranks in run.some((2, 4, 8))]
    columns = {
        "ranks": "", "one rank, GB/s": ".1f", "all together, GB/s": ".1f", "latency, us": ".0f",
        "residual of the fit": ".1%", f"median error of {checks} unseen plans": "**{:.1%}**", "largest": ".0%",
    }  # fmt: skip
    shared = {"shared": "", "senders": "", "GB/s each": ".2f", "fitted": ".2f"}
    unseen = {"plan that the fit has not seen": "", "stages": "", "bytes": "", "predicted, s": ".2e",
              "measured, s": ".2e", "off by": "+.1%"}  # fmt: skip
    figures = [Figure(columns, map(summary, outcomes), machine() + " Rows of 512 bytes.")]
    for outcome in outcomes:
        before = f"### {outcome['ranks']} ranks on {outcome['cores']} cores\n\nSenders at once, to a receiver each:"
        figures.append(Figure(shared, [[*row.values()] for row in outcome["contention"]], before))
        figures.append(Figure(unseen, [[*row.values()] for row in outcome["checked"]]))
    return figures


FIGURES = {"measured": measured}
