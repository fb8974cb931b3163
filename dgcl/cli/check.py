"""The command ``dgcl check``: proves that a plan file delivers every row once, at the cost that it states.

Trees, stages, cost and fingerprint are computed anew from the file; its lower bound and gap are only repeated, "not
proved here", beside a bound by cuts that is. `planner/verify/check_plan` does the work.

Called by `dgcl/cli/__init__`. Free to change while a plan that lies is rejected with exit status 1 and the reason
(`tests/dgcl/cli/test_check.py`).
"""

import argparse
from typing import Any

from dgcl.cli.command_errors import CliError, one_line, reading
from dgcl.cli.output import print_fields, print_json, seconds, size, step
from dgcl.cli.plans import add_plan_file


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "check",
        help="prove that a plan file delivers every row once, at the cost it states",
        description="Prove that a plan delivers every row to each destination exactly once over links that"
        " exist, in stages that never wait in a circle, and that its cost and fingerprint are what it states; bound it"
        " by cuts."
        " Exit status 1 and the reason when it is rejected.",
    )
    add_plan_file(parser)
    parser.runs(check)


def check(args: argparse.Namespace) -> int:
    """Print what was proved, or why the plan is rejected (status 1)."""
    from dgcl.planner import PlanError
    from dgcl.planner.verify.check_plan import check_plan_file

    try:
        with step(f"checking {args.plan}"), reading(args.plan, "plan", passing=PlanError):
            report = check_plan_file(args.plan)
    except PlanError as error:
        if args.json:
            print_json({"path": args.plan, "ok": False, "reason": one_line(error)})
        raise CliError(f"{args.plan}: rejected: {one_line(error)}", status=1) from error
    if args.json:
        print_json({"ok": True, **report.to_json()})
        return 0
    direct, fold, cut = report.direct_seconds, report.fold_seconds, report.cut_bound_seconds
    above = report.predicted_seconds / cut - 1 if cut else 0.0
    way_back = "not possible: some link has none the other way"
    if fold is not None and report.fold_bound_seconds is not None:
        way_back = (
            f"{seconds(fold)}, every contribution added once (bound {seconds(report.fold_bound_seconds)})"
        )
    print_fields(
        [
            ("plan", f"{args.plan}: accepted"),
            ("made by", f"{report.method}, for {report.world_size} ranks, rows of {size(report.row_bytes)}"),
            ("delivers", f"{report.boundary_vertices} vertices, {report.deliveries} rows, each exactly once"),
            ("by", f"{report.num_trees} trees for {report.num_classes} classes, {report.num_stages} stages"),
            ("sends", f"{size(report.bytes_sent)} ({size(report.bytes_needed)} needed)"),
            ("takes", seconds(report.predicted_seconds)),
            ("bound", f"{seconds(cut)} by cuts, proved; the plan is {above:.2%} above it"),
            (
                "as stated",
                f"bound {seconds(report.lower_bound_seconds)}, gap {report.gap:.2%}: not proved here",
            ),
            ("fold", way_back),
            ("direct", "not possible: some pair has no link" if direct is None else seconds(direct)),
            ("fingerprint", report.fingerprint),
        ]
    )
    return 0
