"""``dgcl plan``: plan what a strategy exchanges on a machine; write the plans, and say how good they are."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import number, option, refuse
from dgcl.cli.errors import CliError
from dgcl.cli.files import check_output, check_picture, replacing
from dgcl.cli.groups import OF_GRAPHS, add_machine, add_parts, add_planning, add_source
from dgcl.cli.output import print_json, print_legend, print_written, say, step
from dgcl.cli.placing import find_placement, placement_facts, placement_line
from dgcl.cli.problem import graph_in_parts, load_relation, strategy_of
from dgcl.cli.topologies import resolve
from dgcl.cli.warmup import compile_beside

if TYPE_CHECKING:
    from dgcl.planner import Plan, PlanOptions
    from dgcl.planner.placement import Placement
    from dgcl.program.strategy import Arrangement


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="plan the communication of a partitioned graph on a machine",
        description="Plan how rows travel, and report how good that is: what other methods would take, where"
        " the time goes, and how much better any plan could be. Give a graph, which is partitioned first, or"
        " a relation, which says who needs what already.",
    )
    add_source(parser, "relation", "synthetic")
    add_machine(parser, required=True)
    add_parts(parser)
    add_planning(parser)
    option(parser, "--compare M,M", "other methods to hold it against, such as direct,spst", default="")
    option(parser, "--time-limit S", "stop planning after S seconds", number(0, open_end=True))
    option(parser, "--gap G", "stop once this near the bound (0.01: 1%%)", number(0))
    option(parser, "--place", "first find the device for each part that makes plans fastest")
    option(parser, "--explain CLASS", "show how a class travels: its number, or OWNER>D,D,...")
    option(parser, "--plot FILE", "draw load and stages (png, svg or pdf)")
    option(parser, "--out plan.npz", "write the plan")
    option(parser, "--fold-out F.npz", "write the plan of the partial sums (tail, cover, grid)")
    option(parser, "--relation-out R.npz", "write the relation")
    parser.runs(plan)


def plan(args: argparse.Namespace) -> int:
    """Plan, write what was asked for, and print the outcome."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import get_planner
    from dgcl.planner.reading.explain import explain, find_class
    from dgcl.planner.reading.plot import plot_plan

    compared = args.compare.split(",") if args.compare else []
    for method in (args.method, *compared):
        get_planner(method)  # an unknown method is refused before anything long is done
    _check(args)
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed, time_limit=args.time_limit)
    if args.gap is not None:
        options = replace(options, gap=args.gap)
    if args.method == "auto":
        compile_beside()
    rows, arrangement, placement = _planned(args, options)
    sums = arrangement.partial.plan if arrangement is not None and arrangement.partial is not None else None
    facts = {"strategy": args.strategy, **_facts(rows, compared, options)}
    if args.explain is not None:
        facts["explain"] = explain(rows, find_class(rows.relation, args.explain))
    if placement is not None:
        facts["placement"] = placement_facts(placement)
    if arrangement is not None and arrangement.why:
        facts["choice"] = arrangement.why
    if sums is not None:
        facts["partial"] = _facts(sums, compared, options)
    elif args.fold_out is not None:
        raise CliError(f"--fold-out: there are no partial sums with --strategy {args.strategy}")
    results: list[tuple[str, str | None, Callable[[Path], object]]] = [
        ("plan", args.out, rows.save),
        ("plan of the partial sums", args.fold_out, rows.save if sums is None else sums.save),
        ("relation", args.relation_out, rows.relation.save),
        ("picture", args.plot, partial(plot_plan, rows, graph=_name(args))),
    ]
    with ExitStack() as outputs:  # all files appear, or none
        for _, path, write in results:
            if path is not None:
                write(outputs.enter_context(replacing(path)))
    if args.json:
        print_json(facts)
        return 0
    _print(facts)
    if placement is not None:
        say(f"\nplacement {placement_line(placement)}")
    if any(path is not None for _, path, _ in results):
        say()
    print_written(*((what, path) for what, path, _ in results))
    return 0


_LEGEND = {
    "takes, / bound": "predicted time of an exchange, and that over the least that any plan takes",
    "sends, / needed": "bytes that all ranks send, and those over the bytes that ranks need (more: rows pass through"
    " other ranks)",
    "share, busiest connections": "of the plan's time; and in percent of the stage how long each is busy",
    "of plan, in use": "the share of the plan's time that the busiest connection of a kind is busy, and all of them"
    " on average",
}


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
    for name, check in (
        ("--out", check_output),
        ("--fold-out", check_output),
        ("--relation-out", check_output),
        ("--plot", check_picture),
    ):
        path = getattr(args, name[2:].replace("-", "_"))
        check(name, path, inputs)
        inputs[name] = path


def _name(args: argparse.Namespace) -> str:
    """What is planned, for titles: a file's name without its folder, or the name of a synthetic relation."""
    return os.path.basename(args.graph or args.relation or f"synthetic {args.synthetic} x {args.scale:g}")


def _planned(
    args: argparse.Namespace, options: PlanOptions
) -> tuple[Plan, Arrangement | None, Placement | None]:
    """The plan of the rows; the arrangement that it is of, where there is a graph; and where parts were placed."""
    from dgcl.planner.methods import make_plan
    from dgcl.planner.reading.explain import find_class, parse_class
    from dgcl.planner.synthetic import synthetic_relation
    from dgcl.program.strategy import Problem

    ranks, problem, placement = args.ranks, None, None
    if args.relation is not None:
        relation = load_relation(args.relation, ranks)
        ranks = relation.world_size
    topology = resolve(args.topology, ranks)
    strategy = strategy_of(args, topology.num_devices)
    if args.explain is not None:
        parse_class(args.explain, topology.num_devices)
    if args.synthetic is not None:
        with step(f"drawing {args.synthetic}"):
            relation = synthetic_relation(
                args.synthetic, topology.num_devices, seed=args.seed, scale=args.scale
            )
    elif args.graph is not None:
        graph, part = graph_in_parts(args, topology, getattr(strategy, "block", 1))
        problem = Problem(graph, part, topology, args.method, options)
        if args.strategy == "halo" or args.place:
            with step("finding out who needs what"):
                relation = problem.classes.relation
    if args.place:
        placement = find_placement(relation, topology, options)
        relation = placement.relation
        if problem is not None:
            part = placement.device_of_part.astype(problem.part.dtype)[problem.part]
            problem = replace(problem, part=part)
    if args.explain is not None and args.strategy == "halo":
        find_class(relation, args.explain)  # refused before planning, which may take long
    with step(f"planning {args.strategy} on {topology.name}"):
        if problem is None:
            return make_plan(relation, topology, args.method, options), None, placement
        arrangement = strategy.arrange(problem)
        return arrangement.plan, arrangement, placement


def _facts(plan: Plan, compared: list[str], options: PlanOptions) -> dict[str, Any]:
    """The plan's meta without the topology, sizes, and the report beside other methods."""
    from dgcl.planner.reading.report import compare, report

    others, options = [], replace(options, row_bytes=plan.row_bytes)  # those of a slice, on a grid
    for method in compared:
        if method != plan.method:
            with step(f"planning by {method}, to compare"):
                others += compare(plan.relation, plan.topology, (method,), options)
    return {
        **{key: value for key, value in plan.meta.items() if key != "topology"},
        "num_classes": plan.relation.num_classes,
        "num_trees": plan.trees.num_trees,
        "num_stages": plan.num_stages,
        "boundary_vertices": plan.relation.num_vertices,
        "bytes_total": plan.row_bytes * plan.trees.rows_moved(),
        "report": report(plan, others),
    }


def _print(facts: dict[str, Any]) -> None:
    from dgcl.planner.reading.explain import render_class
    from dgcl.planner.reading.render import render

    if "choice" in facts:
        say(f"strategy  {facts['choice']}\n")
    if facts["bytes_total"] or "partial" not in facts:
        say(render(facts["report"]))
    if "explain" in facts:
        say(f"\n{render_class(facts['explain'])}")
    if "partial" in facts:
        say(f"\nPartial sums travel these trees backwards (fold):\n\n{render(facts['partial']['report'])}")
    print_legend(_LEGEND)
    if "replication" in facts:
        say("\nreplicas  methods and bound are for the copies, inside machines")
