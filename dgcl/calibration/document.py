"""Measure this host again and write the figures into the page about calibration.

    python -m dgcl.calibration.document docs/calibration.md

The text between the two marks of the page is replaced by tables for 2, 4 and 8 CPU ranks: what was fitted,
what senders get that share the memory, and ten plans that the fit has not seen. Takes two to three minutes; the
host should have nothing else to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- measured: written by python -m dgcl.calibration.document -->"
END = "<!-- end of measured -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and rewrite the page; exit status 2 if it has no marks."""
    parser = argparse.ArgumentParser(prog="python -m dgcl.calibration.document", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks, separated by commas")
    parser.add_argument("--check", type=int, default=10, help="plans that the fit has not seen")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each measurement (default: 0.4)")
    args = parser.parse_args(argv)
    page = args.page.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        parser.error(f"{args.page} has no {BEGIN!r} ... {END!r}")
    outcomes = [measure(int(number), args.check, args.seconds) for number in args.ranks.split(",")]
    args.page.write_text(rewritten(page, outcomes), encoding="utf-8")
    return 0


def measure(num_ranks: int, num_checks: int, seconds: float) -> dict[str, Any]:
    """Calibrate ranks on this host; the outcome as JSON values."""
    from dgcl.calibration.effort import Effort
    from dgcl.calibration.run import outcome_json, run_on_host

    effort = Effort(seconds=seconds / Effort().rounds)
    return outcome_json(run_on_host(None, num_ranks, 512, num_checks, effort))


def rewritten(page: str, outcomes: Sequence[dict[str, Any]]) -> str:
    """The page with these outcomes between its marks."""
    from dgcl.topology.detect import Sysfs

    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    cores = outcomes[0]["cores"]
    lines = [
        f"Host: {Sysfs().host()}; {cores} cores for these processes. Rows of {outcomes[0]['row_bytes']} bytes.",
        "",
        *_summary(outcomes),
    ]
    for outcome in outcomes:
        lines += ["", f"### {outcome['ranks']} ranks on {cores} cores", "", *_tables(outcome)]
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}"


def _summary(outcomes: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for outcome in outcomes:
        errors = sorted(abs(one["error"]) for one in outcome["checked"])
        rates = {one["kind"]: one for one in outcome["classes"]}
        core = rates["core"]
        rows.append(
            [
                str(outcome["ranks"]),
                f"{core['bandwidth']:.1f}",
                f"{rates['memory (both ways)']['bandwidth']:.1f}",
                _microseconds(core["latency"]),
                f"{outcome['median_residual']:.1%}",
                f"**{outcome['median_error']:.1%}**",
                f"{errors[-1]:.0%}",
            ]
        )
    return _table(
        [
            "ranks",
            "one rank, GB/s",
            "all together, GB/s",
            "latency",
            "residual of the fit",
            f"median error of {len(outcomes[0]['checked'])} unseen plans",
            "largest",
        ],
        rows,
    )


def _tables(outcome: dict[str, Any]) -> list[str]:
    shared = [row for row in outcome["contention"] if row["shares"] == "memory"]
    plans = [
        [
            one["name"],
            str(one["stages"]),
            f"{one['bytes'] / 1e6:.1f} MB",
            _microseconds(one["predicted"]),
            _microseconds(one["measured"]),
            f"{one['error']:+.0%}",
        ]
        for one in outcome["checked"]
    ]
    return [
        "Senders at once, each to another receiver, over the memory that they share:",
        "",
        *_table(
            ["senders", "GB/s each", "by the fit"],
            [[str(r["senders"]), f"{r['each']:.2f}", f"{r['predicted_each']:.2f}"] for r in shared],
        ),
        "",
        *_table(
            ["plan that the fit has not seen", "stages", "sends", "predicted", "measured", "error"], plans
        ),
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _microseconds(value: float) -> str:
    return f"{value * 1e6:.0f} us" if value < 1e-2 else f"{value * 1e3:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
