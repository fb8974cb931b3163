"""The command ``dgcl show``: prints the report in a plan file without planning, or two plans side by side.

It believes the file; ``dgcl check`` proves it. Two plans must be of one relation, and may be of different machines.

Called by `dgcl/cli/__init__`. Free to change while it prints what ``dgcl plan`` printed of the same plan, and a
comparison has both machines and the connections that differ (`tests/dgcl/cli/test_show.py`).
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import option
from dgcl.cli.plans import add_plan_file, add_views, finish, load_plan, plan_facts
from dgcl.cli.result_files import check_outputs

if TYPE_CHECKING:
    from dgcl.topology.table import Table


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "show",
        help="show what is in a plan file: its report, trees, pictures, or it beside another",
        description="Print what `dgcl plan` printed, out of the file. `dgcl check` proves a plan; this takes its word.",
    )
    add_plan_file(parser)
    option(parser, "--against OTHER.npz", "another plan of the same relation, side by side")
    add_views(parser)
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Print the report, or the comparison; write what was asked for."""
    from dgcl.planner.reading.plan_table import differences, side_by_side

    check_outputs(args, "plot html", {"plan.npz": args.plan, "--against": args.against})
    plan = load_plan(args.plan)
    facts = plan_facts(plan)
    tables: list[Table] = []
    if args.against is not None:
        other = load_plan(args.against)
        tables = [side_by_side([[plan], [other]]), differences(plan, other)]
        facts["against"] = dict(zip(("plans", "differ"), (table.json() for table in tables), strict=True))
    return finish(args, plan, facts, os.path.basename(args.plan), tables)
