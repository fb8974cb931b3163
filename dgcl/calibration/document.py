"""Measures this host again and writes the figures of docs/calibration.md.

    python -m dgcl.calibration.document docs/calibration.md

The tables are for 2, 4 and 8 CPU ranks: what was fitted, what senders get that share the memory, and ten plans that
the fit has not seen. Takes two to three minutes; the host should have nothing else to do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dgcl.bench.table import write_between
from dgcl.calibration.effort import Effort
from dgcl.calibration.report import checked_table, contention_table, summary_table
from dgcl.calibration.run import outcome_json, run_on_host
from dgcl.topology.detect import Sysfs


def text_of(outcomes: Sequence[dict[str, Any]]) -> str:
    """The figures in Markdown."""
    first = outcomes[0]
    host = f"Host: {Sysfs().host()}; {first['cores']} cores for these processes. Rows of {first['row_bytes']} bytes."
    text = [host, summary_table(outcomes).markdown()]
    for outcome in outcomes:
        text += [
            f"### {outcome['ranks']} ranks on {outcome['cores']} cores",
            "Senders at once, each to another receiver, over what they share:",
            contention_table(outcome).markdown(),
            checked_table(outcome).markdown(),
        ]
    return "\n\n".join(text)


def main(page: Path) -> None:
    """Measure, and write into the page."""
    effort = Effort(seconds=0.1)
    outcomes = [outcome_json(run_on_host(None, ranks, 512, 10, effort)) for ranks in (2, 4, 8)]
    write_between(page, "measured", text_of(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
