"""Plans as inputs of commands, and what is said of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dgcl.cli.errors import reading
from dgcl.cli.output import print_legend, say, step

if TYPE_CHECKING:
    from dgcl.planner import Plan
    from dgcl.planner.reading.report import Failure
    from dgcl.topology.table import Table

_LEGEND = {
    "takes, / bound": "predicted time of an exchange, and that over the least that any plan takes",
    "sends, / needed": "bytes that all ranks send, and those over the bytes that ranks need (more: rows pass through"
    " other ranks)",
    "share, busiest connections": "of the plan's time; and in percent of the stage how long each is busy",
    "of plan, in use": "the share of the plan's time that the busiest connection of a kind is busy, and all of them"
    " on average",
}


def proved_plan(path: str) -> Plan:
    """Read a plan and prove it: playing or drawing a wrong one would show nothing."""
    from dgcl.planner import Plan, verify_plan

    with step(f"reading {path}"), reading(path, "plan"):
        plan = Plan.load(path)
        verify_plan(plan)
    return plan


def plan_facts(plan: Plan, others: Sequence[Plan | Failure] = ()) -> dict[str, Any]:
    """The plan's meta without the topology, sizes, and the report beside other plans."""
    from dgcl.planner.reading.report import report

    return {
        **{key: value for key, value in plan.meta.items() if key != "topology"},
        "num_classes": plan.relation.num_classes,
        "num_trees": plan.trees.num_trees,
        "num_stages": plan.num_stages,
        "boundary_vertices": plan.relation.num_vertices,
        "bytes_total": plan.row_bytes * plan.trees.rows_moved(),
        "report": report(plan, others),
    }


def print_plan(facts: dict[str, Any], *tables: Table) -> None:
    """The screen of a plan with more tables of it, and that of its partial sums where it has one."""
    from dgcl.planner.reading.explain import render_class
    from dgcl.planner.reading.render import render

    if "choice" in facts:
        say(f"strategy  {facts['choice']}\n")
    if facts["bytes_total"] or "partial" not in facts:
        say(render(facts["report"]))
    for table in tables:
        say(f"\n{table.text()}")
    if "explain" in facts:
        say(f"\n{render_class(facts['explain'])}")
    if "partial" in facts:
        say(f"\nPartial sums travel these trees backwards (fold):\n\n{render(facts['partial']['report'])}")
    print_legend(_LEGEND)
