"""``dgcl plan``: make a plan of a graph, or a relation, on a topology; write it, and say how good it is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, number, option, refuse
from dgcl.cli.edges import add_edges, plan_edges
from dgcl.cli.files import check_output, check_picture, replacing
from dgcl.cli.grids import add_grid, plan_one_grid
from dgcl.cli.output import print_json, print_legend, print_written, step
from dgcl.cli.placing import find_placement, placement_facts, placement_line
from dgcl.cli.problem import add_problem, check_problem, graph_in_parts, name_of_problem, problem
from dgcl.cli.replicas import add_replication, arrange_copies, check_replication, place_parts
from dgcl.cli.topologies import resolve
from dgcl.cli.warmup import compile_beside

if TYPE_CHECKING:
    from dgcl.planner import Plan, PlanOptions
    from dgcl.planner.placement import Placement

# The paper's greedy takes minutes for millions of vertices on many ranks: there it runs only when asked for.
_MOST_RANKS_FOR_SPST = 16


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="plan the communication of a partitioned graph on a machine",
        description="Plan how rows travel, and report how good that is: what other methods would take, where"
        " the time goes, and how much better any plan could be. Give a graph, which is partitioned first, or"
        " a relation, which says who needs what already.",
    )
    add_problem(parser)
    option(parser, "--method M", "planner (default: auto, the best known)", default="auto")
    add_edges(parser)
    add_grid(parser)
    add_replication(parser)
    option(parser, "--row-bytes B", "default: 512", at_least(1), 512)
    option(parser, "--time-limit S", "stop planning after S seconds", number(0, open_end=True))
    option(parser, "--gap G", "stop once this near the bound (0.01: 1%%)", number(0))
    option(parser, "--place", "first find the device for each part that makes plans fastest")
    option(
        parser,
        "--compare M,M",
        "methods to hold it against (default: direct,spst,auto, and none with --json)",
        _names,
    )
    option(parser, "--explain CLASS", "show how a class travels: its number, or OWNER>D,D,...")
    option(parser, "--plot FILE", "draw load and stages (png, svg or pdf)")
    option(parser, "--out plan.npz", "write the plan")
    option(parser, "--relation-out R.npz", "write the relation")
    parser.runs(plan)


def plan(args: argparse.Namespace) -> int:
    """Plan, write what was asked for, and print the outcome."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import get_planner
    from dgcl.planner.reading.plot import plot_plan
    from dgcl.planner.reading.report import report
    from dgcl.replication import METHOD

    for method in (args.method, *(args.compare or ())):
        if method != METHOD:  # which is not one of the planner's
            get_planner(method)  # an unknown method is refused before anything long is done
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed, time_limit=args.time_limit)
    if args.gap is not None:
        options = replace(options, gap=args.gap)
    if args.grid is not None:
        return plan_one_grid(args, options)
    if args.edges is not None:
        return plan_edges(args, options)
    refuse(args, "fold-out", "goes with --edges or --grid")
    copying = check_replication(args)
    check_problem(args)
    _check_files(args)
    if args.method == "auto":
        compile_beside()
    result, why, placement = (_plan_copies if copying else _plan_relation)(args, options)
    relation = result.relation
    results: list[tuple[str | None, Callable[[Path], None]]] = [
        (args.out, result.save),
        (args.relation_out, relation.save),
        (args.plot, partial(plot_plan, result, graph=name_of_problem(args))),
    ]
    with ExitStack() as outputs:  # all files appear, or none
        for path, write in results:
            if path is not None:
                write(outputs.enter_context(replacing(path)))
    facts = report(result, _others(args, result, options))
    explanation = None if args.explain is None else _explained(result, args.explain, copying)
    if args.json:
        more: dict[str, Any] = {} if explanation is None else {"explain": explanation}
        if why:
            more["choice"] = why
        if placement is not None:
            more["placement"] = placement_facts(placement)
        print_json({**_summary(result), "report": facts, **more})
    else:
        _print(facts, explanation)
        print_legend(_LEGEND)
        if "replication" in result.meta:
            print("\nreplicas  methods and bound are for the copies, inside machines")
        if why:
            print(f"\nchoice    {why}")
        if placement is not None:
            print(f"\nplacement {placement_line(placement)}")
        files = (("plan", args.out), ("relation", args.relation_out), ("picture", args.plot))
        if any(path is not None for _, path in files):
            print()
        print_written(*files)
    return 0


_LEGEND = {
    "takes, / bound": "predicted time of an exchange, and that over the least that any plan takes",
    "sends, / needed": "bytes that all ranks send, and those over the bytes that ranks need (more: rows pass through"
    " other ranks)",
    "share, busiest connections": "of the plan's time; and in percent of the stage how long each is busy",
    "of plan, in use": "the share of the plan's time that the busiest connection of a kind is busy, and all of them"
    " on average",
}


def _plan_relation(args: argparse.Namespace, options: PlanOptions) -> tuple[Plan, str, Placement | None]:
    """The plan, why it is this one ("": nobody asked), and where parts were placed."""
    from dgcl.planner.methods import make_plan
    from dgcl.planner.reading.explain import find_class

    relation, topology = problem(args)
    placement = find_placement(relation, topology, options) if args.place else None
    if placement is not None:
        relation = placement.relation
    if args.explain is not None:
        find_class(relation, args.explain)  # refused before planning, which may take long
    with step(f"planning {relation.num_classes} classes on {topology.name}"):
        return make_plan(relation, topology, args.method, options), "", placement


def _plan_copies(args: argparse.Namespace, options: PlanOptions) -> tuple[Plan, str, Placement | None]:
    """The same with replicas across machines, where that was asked for or is better."""
    from dgcl.planner.reading.explain import parse_class

    topology = resolve(args.topology, args.parts)
    if args.explain is not None:
        parse_class(args.explain, topology.num_devices)
    graph, part, classes = graph_in_parts(args, topology)
    placement = find_placement(classes.relation, topology, options) if args.place else None
    if placement is not None:
        part, classes = place_parts(graph, part, placement)
    arrangement, why = arrange_copies(args, graph, part, classes, topology, options)
    return arrangement.plan, why, placement


def _explained(plan: Plan, text: str, copying: bool) -> dict[str, Any]:
    """How a class travels.

    With replicas, the relation is chosen here, so that a class which it has not is an answer, and no error.
    """
    from dgcl.planner.reading.explain import explain, find_class

    try:
        return explain(plan, find_class(plan.relation, text))
    except ValueError as error:
        if not copying:
            raise
        return {"class": text, "missing": str(error)}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _check_files(args: argparse.Namespace) -> None:
    inputs = {
        "GRAPH": args.graph,
        "--relation": args.relation,
        "--part": args.part,
        "--topology": args.topology,
    }
    check_output("--out", args.out, inputs)
    check_output("--relation-out", args.relation_out, {**inputs, "--out": args.out})
    check_picture("--plot", args.plot, {**inputs, "--out": args.out, "--relation-out": args.relation_out})


def _others(args: argparse.Namespace, plan: Plan, options: PlanOptions) -> list[Any]:
    """Plan the same by the other methods that the table shows."""
    from dgcl.planner.reading.report import COMPARED, compare

    methods = args.compare
    if methods is None:
        few = plan.world_size <= _MOST_RANKS_FOR_SPST
        methods = () if args.json else [m for m in COMPARED if m != "spst" or few]
    others = []
    chosen = [method for method in methods if method != plan.method]
    for which, method in enumerate(chosen, 1):
        with step(f"planning by {method}, to compare ({which} of {len(chosen)})"):
            others += compare(plan.relation, plan.topology, (method,), options)
    return others


def _summary(plan: Plan) -> dict[str, Any]:
    """The plan's meta without the topology, and sizes."""
    return {
        **{key: value for key, value in plan.meta.items() if key != "topology"},
        "num_classes": plan.relation.num_classes,
        "num_trees": plan.trees.num_trees,
        "num_stages": plan.num_stages,
        "boundary_vertices": plan.relation.num_vertices,
        "bytes_total": plan.row_bytes * plan.trees.rows_moved(),
    }


def _print(facts: dict[str, Any], explanation: dict[str, Any] | None) -> None:
    from dgcl.planner.reading.explain import render_class
    from dgcl.planner.reading.render import render

    print(render(facts))
    if explanation is not None:
        print()
        print(
            f"explain   {explanation['missing']}" if "missing" in explanation else render_class(explanation)
        )
