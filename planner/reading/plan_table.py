"""Makes tables of plans: several side by side, a line each, or where two plans of one relation differ.

Two plans differ in the connections, each way, that are in use for other times.
Called by `dgcl/cli/plan` and `dgcl/cli/show`. Free to change while a line has the sums of its plans' times, bounds,
stages and bytes (`tests/planner/reading/test_sensitivity.py`).
"""

from collections.abc import Iterable, Sequence
from textwrap import shorten

import numpy as np

from dgcl.planner.cost import stage_use
from dgcl.planner.plan import Plan
from dgcl.planner.reading.render import seconds, size
from dgcl.topology.table import Column, Table

MOST = 10  # connections that differ


def side_by_side(lines: Iterable[Sequence[Plan]]) -> Table:
    """Return a line for each; several plans of a line are executed one after the other."""
    table = Table(
        Column("machine", left=True),
        "ranks",
        "method",
        Column("takes", seconds),
        Column("bound", seconds),
        "stages",
        Column("sends", size),
        Column("limited by", lambda text: shorten(text, 50), left=True),
    )
    for plans in lines:
        longest = max(plans, key=lambda plan: plan.predicted_seconds)
        table.add(
            longest.topology.name,
            longest.world_size,
            longest.method,
            sum(plan.predicted_seconds for plan in plans),
            sum(plan.lower_bound_seconds for plan in plans),
            sum(plan.num_stages for plan in plans),
            sum(plan.row_bytes * plan.trees.rows_moved() for plan in plans),
            longest.meta.get("limited_by", ""),
        )
    return table


def differences(plan: Plan, other: Plan) -> Table:
    """Return the connection-directions whose seconds in use differ most.

    Raises:
        ValueError: They are not plans of one relation.
    """
    for name in ("world_size", "source", "dests", "count"):
        if not np.array_equal(getattr(plan.relation, name), getattr(other.relation, name)):
            raise ValueError(f"both must be plans of one relation: they differ in {name}")
    used = []
    for each in (plan, other):
        busy = stage_use(each).sum(axis=0).tolist()
        used.append(dict(zip(each.topology.arrays().direction_names, busy, strict=True)))
    table = Table(Column("in use", left=True), Column("first", seconds), Column("second", seconds))
    rows = [(name, *(each.get(name, 0.0) for each in used)) for name in sorted(used[0] | used[1])]
    for row in sorted(rows, key=lambda row: -abs(row[1] - row[2]))[:MOST]:
        if row[1] != row[2]:
            table.add(*row)
    return table
