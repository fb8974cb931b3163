"""Tables of what a calibration found, for the command and for the page about calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dgcl.bench.table import Column, Table
from dgcl.planner.reading.render import seconds, size


def class_table(outcome: dict[str, Any]) -> Table:
    """The fitted classes of connections."""
    table = Table(
        Column("connections", left=True),
        "how many",
        Column("GB/s", ".4g"),
        Column("latency", seconds),
        "decided",
    )
    for one in outcome["classes"]:
        table.add(one["kind"], len(one["connections"]), one["bandwidth"], one["latency"], one["decided"])
    return table


def contention_table(outcome: dict[str, Any]) -> Table:
    """What senders get that share a connection."""
    table = Table(Column("shared", left=True), "senders", Column("GB/s each", ".2f"), Column("fitted", ".2f"))
    for row in outcome["contention"]:
        table.add(*row.values())
    return table


def checked_table(outcome: dict[str, Any]) -> Table:
    """Plans that the fit has not seen."""
    table = Table(
        Column("plan that the fit has not seen", left=True),
        "stages",
        Column("sends", size),
        Column("predicted", seconds),
        Column("measured", seconds),
        Column("error", "+.1%"),
    )
    for one in outcome["checked"]:
        table.add(*one.values())
    return table


def summary_table(outcomes: Sequence[dict[str, Any]]) -> Table:
    """One row for each number of CPU ranks of a host."""
    table = Table(
        "ranks",
        Column("one rank, GB/s", ".1f"),
        Column("all together, GB/s", ".1f"),
        Column("latency", seconds),
        Column("residual of the fit", ".1%"),
        Column(f"median error of {len(outcomes[0]['checked'])} unseen plans", "**{:.1%}**".format),
        Column("largest", ".0%"),
    )
    for outcome in outcomes:
        rates = {one["kind"]: one for one in outcome["classes"]}
        core, memory = rates["core"], rates["memory (both ways)"]
        table.add(
            outcome["ranks"],
            core["bandwidth"],
            memory["bandwidth"],
            core["latency"],
            outcome["median_residual"],
            outcome["median_error"],
            max(abs(one["error"]) for one in outcome["checked"]),
        )
    return table
