"""Reads plan files for commands, and prints a plan's report, legend, picture and page.

``proved=True`` verifies a plan when it is read: `simulate` needs that, as a wrong plan would show nothing. `check` has
a reader of its own.

Called by `plan`, `show`, `simulate` and `check`. Free to change while ``dgcl show`` prints of a file what ``dgcl plan``
printed when it wrote it (`tests/dgcl/cli/test_show.py`), and columns have their legend
(`tests/dgcl/cli/test_plan.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import option
from dgcl.cli.command_errors import reading
from dgcl.cli.output import print_json, print_legend, print_written, say, step
from dgcl.cli.result_files import Results, write_all

if TYPE_CHECKING:
    from dgcl.planner import Plan
    from dgcl.planner.reading.plan_report import Failure
    from dgcl.topology.table import Table

_LEGEND = {
    "takes, / bound": "predicted time of an exchange, and that over the least that any plan takes",
    "sends, / needed": "bytes that all ranks send, and those over the bytes that ranks need (more: rows pass through"
    " other ranks)",
    "share, busiest connections": "of the plan's time; and in percent of the stage how long each is busy",
    "of plan, in use": "the share of the plan's time that the busiest connection of a kind is busy, and all of them"
    " on average",
}


def add_plan_file(parser: Any) -> None:
    """Declare the plan that a command reads."""
    parser.add_argument("plan", metavar="plan.npz", help="a plan file written by `dgcl plan --out`")


def add_views(parser: Any) -> None:
    """Declare what of a plan is shown besides its report."""
    option(parser, "--explain CLASS", "show how a class travels: its number, or OWNER>D,D,...")
    option(parser, "--plot FILE", "draw load and stages (png, svg or pdf)")
    option(parser, "--html FILE", "write a page that shows it, for a browser")


def load_plan(path: str, *, proved: bool = False) -> Plan:
    """Read a plan, and prove it where it is played: a wrong one would show nothing."""
    from dgcl.planner import Plan, verify_plan

    with step(f"reading {path}"), reading(path, "plan"):
        plan = Plan.load(path)
        if proved:
            verify_plan(plan)
    return plan


def plan_facts(plan: Plan, others: Sequence[Plan | Failure] = ()) -> dict[str, Any]:
    """The plan's meta without the topology, sizes, and the report beside other plans."""
    from dgcl.planner.reading.plan_report import report

    return {
        **{key: value for key, value in plan.meta.items() if key != "topology"},
        "num_classes": plan.relation.num_classes,
        "num_trees": plan.trees.num_trees,
        "num_stages": plan.num_stages,
        "boundary_vertices": plan.relation.num_vertices,
        "bytes_total": plan.row_bytes * plan.trees.rows_moved(),
        "report": report(plan, others),
    }


def finish(
    args: argparse.Namespace,
    plan: Plan,
    facts: dict[str, Any],
    name: str,
    tables: Sequence[Table] = (),
    files: Results = (),
) -> int:
    """Write the picture and the page of a plan after other files, and print it; tables of two plans stand alone."""
    from dgcl.planner.reading.explain import explain, find_class, render_class
    from dgcl.planner.reading.page import plan_page, write_page
    from dgcl.planner.reading.plan_plot import plot_plan
    from dgcl.planner.reading.render import render

    if args.explain is not None:
        facts["explain"] = explain(plan, find_class(plan.relation, args.explain))
    results: Results = [
        *files,
        ("picture", args.plot, partial(plot_plan, plan, graph=name)),
        ("page", args.html, lambda path: write_page(path, plan_page(plan, facts["report"], name))),
    ]
    write_all(results)
    if args.json:
        print_json(facts)
        return 0
    texts = [table.text() for table in tables if table.rows]
    if "against" not in facts:
        if facts["bytes_total"] or "partial" not in facts:
            texts.insert(0, render(facts["report"]))
        if "choice" in facts:
            texts.insert(0, f"strategy  {facts['choice']}")
        if "explain" in facts:
            texts.append(render_class(facts["explain"]))
        if "partial" in facts:
            texts += ["Partial sums travel these trees backwards (fold):", render(facts["partial"]["report"])]
    say("\n\n".join(texts))
    if "against" not in facts:
        print_legend(_LEGEND)
    print_written(*results, space=True)
    return 0
