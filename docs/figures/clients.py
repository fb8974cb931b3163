"""The table of libraries on the page of potentials and meshes, from what ``make test-clients`` has written.

Each library's numbers on ranks are compared with those of one device; a cell is the largest difference of all numbers
and numbers of ranks, over the largest element of its tensor. What a library lacks is "-".
"""

import os
import xml.etree.ElementTree as ET

from docs.figures.framework import HERE, Figure, Run

PAGE = "potentials.md"
RESULTS = HERE.parents[1] / "build/clients"
SCRIPTS = {
    "trained": "energy, forces, stress, training",
    "batch": "two structures",
    "moved": "MD, dispatched anew",
    "spread": "MD, `dgcl.neighbors`",
    "epoch": "three steps of training",
}


def clients(run: Run) -> Figure:
    """Every library, what changes in a script, and how far its numbers are from one device."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    ranks, seconds = set(), 0.0
    for path in sorted(RESULTS.glob("*.xml")):
        for case in ET.parse(path).iter("testcase"):
            seconds += float(case.get("time", 0))
            said = {each.get("name"): each.get("value") for each in case.iter("property")}
            if case.find("skipped") is not None or "script" not in said:
                continue
            key = said["client"], said["version"], said["call"], said["lines"]
            ranks.add(said["ranks"])
            errors = found.setdefault(key, {})
            error = float("inf" if case.find("failure") is not None else said["error"])
            errors[said["script"]] = max(error, errors.get(said["script"], 0.0))

    def cell(error: float | None) -> str:
        return "-" if error is None else f"{error:.0e}".replace("inf", "wrong")

    rows = [[*key, *(cell(errors.get(script)) for script in SCRIPTS)] for key, errors in found.items()]
    columns = dict.fromkeys(
        ("client", "version", "`dgcl.dispatch`", "lines that change", *SCRIPTS.values()), ""
    )
    where = ", ".join(sorted(ranks)).replace("1 threads", "1 thread")
    after = f"Ranks: {where}. Running all of it took {seconds / 60:.0f} minutes on {os.cpu_count()} cores."
    return Figure(columns, rows, after=after)


FIGURES = {"clients": clients}
