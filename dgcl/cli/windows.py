"""Windows of a plan's rows, for ``dgcl plan --windows``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import Parser, at_least
from dgcl.cli.errors import CliError
from dgcl.cli.output import print_table, seconds

if TYPE_CHECKING:
    from dgcl.planner import Plan

_MOST_SHOWN = 32


def add_windows(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--windows",
        metavar="W",
        type=at_least(1),
        help="divide rows into W windows, which travel one after the other along the same trees",
    )
    parser.add_argument(
        "--by",
        choices=("mixed", "owner"),
        default="mixed",
        help="with --windows: each rank's halo evenly (mixed, default), or window q are the rows of rank q (owner)",
    )


def windows_of(args: argparse.Namespace, plan: Plan) -> list[Plan]:
    """The plans of the windows that are asked for; none: nobody asked."""
    from dgcl.planner.windows import window_plans

    if args.windows is None:
        if args.by != "mixed":
            raise CliError(
                f"--by goes with --windows; there are {plan.world_size} with --by owner, as many as ranks"
            )
        return []
    try:
        return window_plans(plan, args.windows, args.by)
    except ValueError as error:
        raise CliError(f"--windows: {error}") from error


def window_facts(plans: list[Plan]) -> list[dict[str, Any]]:
    """Of each window, as JSON values: rows over all ranks, those of the rank that receives most, seconds."""
    return [
        {
            "rows": plan.relation.deliveries,
            "most_rows": int(plan.relation.pair_rows().sum(axis=0).max(initial=0)),
            "rows_moved": plan.trees.rows_moved(),
            "predicted_seconds": plan.predicted_seconds,
            "lower_bound_seconds": plan.lower_bound_seconds,
        }
        for plan in plans
    ]


def print_windows(facts: list[dict[str, Any]]) -> None:
    """A line for each window, or the first ones, and one for all."""
    lines = [(str(q), each) for q, each in enumerate(facts)]
    if len(facts) > _MOST_SHOWN:
        lines = lines[:_MOST_SHOWN]
    total = {name: sum(each[name] for each in facts) for name in facts[0]}
    total["most_rows"] = max(each["most_rows"] for each in facts)
    lines.append(("all" if len(facts) <= _MOST_SHOWN else f"all {len(facts)}", total))
    print_table(
        ["window", "rows", "most on a rank", "exchange", "bound"],
        [
            [
                name,
                str(each["rows"]),
                str(each["most_rows"]),
                seconds(each["predicted_seconds"]),
                seconds(each["lower_bound_seconds"]),
            ]
            for name, each in lines
        ],
    )
