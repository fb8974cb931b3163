"""``dgcl plan --edges``: who sums the edges of an aggregation, and what both of its exchanges take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import PLACEMENTS, Parser, option, refuse
from dgcl.cli.errors import CliError
from dgcl.cli.files import check_output
from dgcl.cli.output import print_json, print_legend, print_table, print_written, seconds, step
from dgcl.cli.plans import save_plans
from dgcl.cli.problem import check_problem, graph_in_parts
from dgcl.cli.topologies import resolve

if TYPE_CHECKING:
    from dgcl.planner import PlanOptions
    from dgcl.workers.plans import AggregationPlan


def add_edges(parser: Parser) -> None:
    """Declare the options."""
    option(
        parser,
        "--edges",
        "who sums an edge u->v of an aggregation: the owner of v (head), of u (tail), whichever moves fewer rows"
        " (cover), or what is predicted fastest (auto); plans both exchanges, of rows and of partial sums",
        PLACEMENTS,
    )
    option(parser, "--fold-out F.npz", "with --edges or --grid: write the plan of the partial sums")


def plan_edges(args: argparse.Namespace, options: PlanOptions) -> int:
    """Plan an aggregation for each way to place its edges, and print them side by side."""
    from dgcl.workers.plans import fastest

    check_exchanges(args, "--edges")
    plans = _plans(args, options)
    edge_seconds = 0.0 if args.work is None else args.work[0]
    chosen = fastest(plans, edge_seconds) if args.edges == "auto" else args.edges
    chosen_plan = plans[chosen]
    save_plans((args.out, chosen_plan.expand), (args.fold_out, chosen_plan.folded))
    facts = {name: _facts(one, edge_seconds) for name, one in plans.items()}
    if args.json:
        print_json({"edges": chosen, "placements": facts})
        return 0
    print_exchanges({f"{name} <-" if name == chosen else name: one for name, one in facts.items()})
    print_written(("plan of the rows", args.out), ("plan of the partial sums", args.fold_out))
    return 0


def print_exchanges(facts: dict[str, dict[str, Any]]) -> None:
    """A line for each way to carry out both exchanges, by its name."""
    print_table(
        ["edges", "expanded", "folded", "rows/vertex", "edges max/mean", "expand", "fold", "both", "bound"],
        [
            [
                name,
                str(one["rows_expanded"]),
                str(one["rows_folded"]),
                f"{one['rows_per_vertex']:.3f}",
                f"{one['imbalance']:.2f}",
                *(seconds(one[f"{what}_seconds"]) for what in ("expand", "fold", "exchange", "lower_bound")),
            ]
            for name, one in facts.items()
        ],
    )
    print_legend(
        {
            "expanded, folded": "rows (slices on a grid) and partial sums that travel over all ranks in an aggregation",
            "rows/vertex": "both together, over the vertices of the graph",
            "edges max/mean": "edges that the fullest rank sums, over the average",
            "bound": "the least that any plan of both exchanges takes",
        }
    )


def check_exchanges(args: argparse.Namespace, with_option: str) -> None:
    """Refuse what says nothing of two exchanges, which ``with_option`` plans, before anything long is done."""
    if args.graph is None:
        raise CliError(f"{with_option} goes with a graph: who may sum an edge depends on the edges")
    others = "compare explain plot relation-out place hops memory-limit"
    refuse(args, others, f"goes without {with_option}, which plans two exchanges")
    check_problem(args)
    inputs = {"GRAPH": args.graph, "--part": args.part, "--topology": args.topology}
    check_output("--out", args.out, inputs)
    check_output("--fold-out", args.fold_out, {**inputs, "--out": args.out})


def _plans(args: argparse.Namespace, options: PlanOptions) -> dict[str, AggregationPlan]:
    from dgcl.workers.exchanges import EDGES, exchanges_of, workers_of
    from dgcl.workers.plans import plan_exchanges

    topology = resolve(args.topology, args.parts)
    graph, part, _ = graph_in_parts(args, topology)
    plans = {}
    for edges in EDGES:
        with step(f"planning both exchanges with edges at the {edges}"):
            worker = workers_of(edges, graph, part, topology.num_devices)
            exchanges = exchanges_of(graph, part, worker, topology.num_devices)
            plans[edges] = plan_exchanges(exchanges, topology, args.method, options)
    return plans


def _facts(plan: AggregationPlan, edge_seconds: float) -> dict[str, Any]:
    """A placement as JSON values; rows over all ranks, seconds predicted."""
    expanded, folded = plan.exchanges.rows
    num_nodes = len(plan.exchanges.expand.owner)
    return {
        "rows_expanded": expanded,
        "rows_folded": folded,
        "rows_per_vertex": (expanded + folded) / num_nodes,
        "edges": plan.exchanges.edges.tolist(),
        "imbalance": plan.exchanges.imbalance,
        "expand_seconds": plan.expand.predicted_seconds,
        "fold_seconds": plan.fold.predicted_seconds,
        "exchange_seconds": plan.exchange_seconds,
        "seconds": plan.seconds(edge_seconds),
        "lower_bound_seconds": plan.expand.lower_bound_seconds + plan.fold.bound.seconds,
        "num_stages": [plan.expand.num_stages, plan.folded.num_stages],
    }
