"""The command ``dgcl plan``: plans the exchanges of a strategy on a machine, writes plans, and prints a report.

A strategy with partial sums (tail, cover, grid) has a second plan, for the sums; ``--fold-out`` writes it. With several
machines or numbers of ranks there is a table with a line for each, and no files. A row is ``--row-bytes`` long.

Called by `dgcl/cli/__init__`. Free to change while files are as docs/plan-format.md says and what is printed agrees
with them (`tests/dgcl/cli/test_plan.py`; strategies: `tests/dgcl/cli/test_strategies.py`).
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, list_of, number, option, refuse
from dgcl.cli.command_errors import CliError
from dgcl.cli.option_groups import OF_GRAPHS, add_parts, add_planning, add_source
from dgcl.cli.output import print_json, say, step
from dgcl.cli.plans import add_views, finish, plan_facts
from dgcl.cli.problem import graph_in_parts, load_relation, strategy_of
from dgcl.cli.result_files import Results, check_outputs
from dgcl.cli.topologies import TOPOLOGY_HELP, add_changes, machines
from dgcl.cli.warmup import compile_beside

if TYPE_CHECKING:
    from dgcl.planner import Plan, PlanOptions
    from dgcl.planner.reading.plan_report import Failure
    from dgcl.topology import Topology
    from dgcl.topology.table import Table


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "plan",
        help="plan the communication of a partitioned graph on a machine",
        description="Plan how rows travel, and report how good that is: what other methods would take, where"
        " the time goes, and how much better any plan could be. Give a graph, which is partitioned first, or"
        " a relation, which says who needs what already.",
    )
    add_source(parser, "relation", "synthetic")
    option(parser, "--topology T[,T]", f"{TOPOLOGY_HELP}; several: a table", required=True)
    option(parser, "--ranks P[,P]", "how many; default: the devices of T", list_of(at_least(1)))
    add_parts(parser)
    add_planning(parser)
    add_changes(parser)
    option(parser, "--sensitivity", "what connections twice and half as fast would bring")
    option(parser, "--compare M,M", "other methods to hold it against, such as direct,spst", default="")
    option(parser, "--time-limit S", "stop planning after S seconds", number(0, open_end=True))
    option(parser, "--gap G", "stop once this near the bound (0.01: 1%%)", number(0))
    add_views(parser)
    option(parser, "--out plan.npz", "write the plan")
    option(parser, "--fold-out F.npz", "write the plan of the partial sums (tail, cover, grid)")
    option(parser, "--relation-out R.npz", "write the relation")
    parser.runs(plan)


def plan(args: argparse.Namespace) -> int:
    """Plan, write what was asked for, and print the outcome."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import get_planner
    from dgcl.planner.reading.plan_table import side_by_side
    from dgcl.planner.reading.sensitivity import sensitivity

    compared = args.compare.split(",") if args.compare else []
    for method in (args.method, *compared):
        get_planner(method)  # an unknown method is refused before anything long is done
    _check(args)
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed, time_limit=args.time_limit)
    if args.gap is not None:
        options = replace(options, gap=args.gap)
    if args.method == "auto":
        compile_beside()
    relation = (
        None if args.relation is None else load_relation(args.relation, args.ranks[0] if args.ranks else None)
    )
    sizes = args.ranks or [None if relation is None else relation.world_size]
    topologies = machines(args, list(dict.fromkeys(sizes)))
    if len(topologies) > 1:
        one = "is of one machine: give one --topology and one number of --ranks"
        refuse(args, "out fold-out relation-out plot html explain compare sensitivity", one)
        lines = side_by_side(_planned(args, topology, options, relation)[0] for topology in topologies)
        if args.json:
            print_json({"strategy": args.strategy, "machines": lines.json()})
        else:
            say(lines.text())
        return 0
    plans, why = _planned(args, topologies[0], options, relation)
    rows, *sums = plans
    if args.fold_out is not None and not sums:
        raise CliError(f"--fold-out: there are no partial sums with --strategy {args.strategy}")
    facts = {"strategy": args.strategy, **plan_facts(rows, _others(rows, compared, options))}
    tables: list[Table] = []
    if args.sensitivity:
        with step("planning for connections twice and half as fast"):
            tables.append(sensitivity(rows, options))
        facts["sensitivity"] = tables[0].json()
    if why:
        facts["choice"] = why
    for each in sums:
        facts["partial"] = plan_facts(each, _others(each, compared, options))
    files: Results = [
        ("plan", args.out, rows.save),
        ("plan of the partial sums", args.fold_out, plans[-1].save),
        ("relation", args.relation_out, rows.relation.save),
    ]
    name = os.path.basename(args.graph or args.relation or f"synthetic {args.synthetic} x {args.scale:g}")
    return finish(args, rows, facts, name, tables, files)


def _check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, and files that cannot be written."""
    if args.graph is None:
        refuse(args, f"strategy {OF_GRAPHS}", "goes with a graph: a relation says already who needs what")
    if args.synthetic is None:
        refuse(args, "scale", "goes with --synthetic")
    inputs = {
        "GRAPH": args.graph,
        "--relation": args.relation,
        "--part": args.part,
        "--topology": args.topology,
    }
    check_outputs(args, "out fold-out relation-out plot html", inputs)


def _planned(
    args: argparse.Namespace, topology: Topology, options: PlanOptions, relation: Any
) -> tuple[list[Plan], str]:
    """The plan of the rows, that of partial sums if there are any, and what the strategy says of itself."""
    from dgcl.planner.methods import make_plan
    from dgcl.planner.reading.explain import find_class
    from dgcl.planner.synthetic import synthetic_relation
    from dgcl.program.strategy import Problem

    problem = None
    strategy = strategy_of(args, topology.num_devices)
    if args.synthetic is not None:
        with step(f"drawing {args.synthetic}"):
            relation = synthetic_relation(
                args.synthetic, topology.num_devices, seed=args.seed, scale=args.scale
            )
    elif args.graph is not None:
        graph, part = graph_in_parts(args, topology, getattr(strategy, "block", 1))
        problem = Problem(graph, part, topology, args.method, options)
        if args.strategy == "halo":
            with step("finding out who needs what"):
                relation = problem.classes.relation
    if args.explain is not None and args.strategy == "halo":
        find_class(relation, args.explain)  # refused before planning, which may take long
    with step(f"planning {args.strategy} on {topology.name}"):
        if problem is None:
            return [make_plan(relation, topology, args.method, options)], ""
        arrangement = strategy.arrange(problem)
    sums = arrangement.partial
    return [arrangement.plan, *([] if sums is None else [sums.plan])], arrangement.why


def _others(plan: Plan, compared: list[str], options: PlanOptions) -> list[Plan | Failure]:
    """The same by other methods."""
    from dgcl.planner.reading.plan_report import compare

    others, options = [], replace(options, row_bytes=plan.row_bytes)  # those of a slice, on a grid
    for method in compared:
        if method != plan.method:
            with step(f"planning by {method}, to compare"):
                others += compare(plan.relation, plan.topology, (method,), options)
    return others
