"""Tables of what a calibration measured, for the command."""

from typing import Any

from dgcl.planner.reading.render import seconds, size
from dgcl.topology.table import Column, Table


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
