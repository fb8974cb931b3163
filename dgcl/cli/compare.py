"""``dgcl compare``: methods by machines, in predicted seconds, beside what no plan can beat."""

from __future__ import annotations

import argparse
from typing import Any

from dgcl.cli.arguments import at_least, number
from dgcl.cli.errors import CliError
from dgcl.cli.files import check_picture, replacing
from dgcl.cli.output import print_json, print_table, print_written, seconds, step
from dgcl.cli.plan import MOST_RANKS_FOR_SPST
from dgcl.cli.problem import add_problem, check_problem, name_of_problem, problem

METHODS = ("direct", "ring", "chain", "broadcast", "spst", "auto")


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="compare planners on machines",
        description="Plan the same graph by several methods on several machines: predicted seconds of an"
        " exchange, how many times the bound that is, and a picture. --topology takes several, divided by commas.",
    )
    add_problem(parser)
    parser.add_argument(
        "--methods",
        metavar="M,M",
        help=f"default: {','.join(METHODS)}, without spst above {MOST_RANKS_FOR_SPST} ranks",
    )
    parser.add_argument("--row-bytes", metavar="B", type=at_least(1), default=512, help="default: 512")
    parser.add_argument(
        "--time-limit", metavar="S", type=number(0, open_end=True), help="stop planning after S seconds each"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw bars with the bound (png, svg or pdf)")
    parser.runs(compare)


def compare(args: argparse.Namespace) -> int:
    """Plan everything, print the table, and draw it."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import get_planner
    from dgcl.planner.reading.compare_plot import plot_compared

    check_problem(args)
    methods = None if args.methods is None else [name for name in args.methods.split(",") if name]
    if methods == []:
        raise CliError(f"--methods needs at least one method (got {args.methods!r})")
    for method in methods or ():
        get_planner(method)  # an unknown method is refused before anything long is done
    check_picture(
        "--plot", args.plot, {"GRAPH": args.graph, "--relation": args.relation, "--part": args.part}
    )
    specs = [spec for spec in args.topology.split(",") if spec]
    if not specs:
        raise CliError("--topology needs at least one preset or file")
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed, time_limit=args.time_limit)
    compared = [_on_one(args, spec, methods, options) for spec in specs]
    name = name_of_problem(args)
    if args.plot is not None:
        with replacing(args.plot) as path:
            title = f"{name}: one exchange of rows of {args.row_bytes} bytes (times the bound)"
            plot_compared(compared, path, title=title)
    if args.json:
        print_json({"graph": name, "row_bytes": args.row_bytes, "topologies": compared, "plot": args.plot})
    else:
        _print(name, args, compared)
    return 0


def _on_one(args: argparse.Namespace, spec: str, chosen: list[str] | None, options: Any) -> dict[str, Any]:
    from dgcl.planner.reading.report import compare as plan_all
    from dgcl.planner.reading.report import method_facts

    relation, topology = problem(argparse.Namespace(**{**vars(args), "topology": spec}))
    few = relation.world_size <= MOST_RANKS_FOR_SPST
    methods = [m for m in METHODS if few or m != "spst"] if chosen is None else chosen
    outcomes = []
    for method in methods:
        with step(f"planning by {method} on {topology.name}"):
            outcomes += plan_all(relation, topology, (method,), options)
    facts, bound = method_facts(outcomes)
    return {
        "topology": topology.name,
        "ranks": relation.world_size,
        "deliveries": relation.deliveries,
        "bound_seconds": bound,
        "methods": facts,
    }


def _print(name: str, args: argparse.Namespace, compared: list[dict[str, Any]]) -> None:
    """A line for each method, a column for each machine: seconds, and times the bound."""
    methods = dict.fromkeys(m["method"] for machine in compared for m in machine["methods"])
    rows = [[method, *(_cell(machine, method) for machine in compared)] for method in methods]
    rows.append(["bound", *(seconds(machine["bound_seconds"]) for machine in compared)])
    rows.append(["rows to deliver", *(f"{machine['deliveries']:,}" for machine in compared)])
    print(f"{name}, one exchange of rows of {args.row_bytes} bytes: predicted time, and times the bound\n")
    print_table(["method", *(f"{m['topology']}, {m['ranks']} ranks" for m in compared)], rows)
    if args.plot is not None:
        print()
        print_written(("picture", args.plot))


def _cell(machine: dict[str, Any], method: str) -> str:
    facts = next((m for m in machine["methods"] if m["method"] == method), None)
    if facts is None:
        return ""
    return (
        "impossible"
        if "impossible" in facts
        else f"{seconds(facts['predicted_seconds'])}  {facts['to_bound']:.3f}"
    )
