"""``dgcl show``: what a plan file says, without planning; two plans of one relation side by side."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import option
from dgcl.cli.errors import reading
from dgcl.cli.files import Results, check_outputs, write_all
from dgcl.cli.output import print_json, print_written, say, step
from dgcl.cli.plans import plan_facts, print_plan

if TYPE_CHECKING:
    from dgcl.planner import Plan
    from dgcl.topology.table import Table


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="show what is in a plan file: its report, trees, pictures, or it beside another",
        description="Print what `dgcl plan` printed, out of the file. `dgcl check` proves a plan; this takes its word.",
    )
    parser.add_argument("plan", metavar="plan.npz", help="a plan file written by `dgcl plan --out`")
    option(parser, "--explain CLASS", "show how a class travels: its number, or OWNER>D,D,...")
    option(parser, "--against OTHER.npz", "another plan of the same relation, side by side")
    option(parser, "--plot FILE", "draw load and stages (png, svg or pdf)")
    option(parser, "--html FILE", "write a page that shows it, for a browser")
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Print the report, or the comparison; write what was asked for."""
    from dgcl.planner.reading.explain import explain, find_class
    from dgcl.planner.reading.page import plan_page, write_page
    from dgcl.planner.reading.plot import plot_plan
    from dgcl.planner.reading.several import differences, side_by_side

    check_outputs(args, "plot html", {"plan.npz": args.plan, "--against": args.against})
    plan, name = _load(args.plan), os.path.basename(args.plan)
    facts = plan_facts(plan)
    if args.explain is not None:
        facts["explain"] = explain(plan, find_class(plan.relation, args.explain))
    tables: list[Table] = []
    if args.against is not None:
        other = _load(args.against)
        tables = [side_by_side([[plan], [other]]), differences(plan, other)]
        facts["against"] = dict(zip(("plans", "differ"), (table.json() for table in tables), strict=True))
    results: Results = [
        ("picture", args.plot, partial(plot_plan, plan, graph=name)),
        ("page", args.html, lambda path: write_page(path, plan_page(plan, facts["report"], name))),
    ]
    write_all(results)
    if args.json:
        print_json(facts)
        return 0
    if tables:
        say("\n\n".join(table.text() for table in tables if table.rows))
    else:
        print_plan(facts)
    print_written(*results, space=True)
    return 0


def _load(path: str) -> Plan:
    from dgcl.planner import Plan

    with step(f"reading {path}"), reading(path, "plan"):
        return Plan.load(path)
