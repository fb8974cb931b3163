"""``dgcl plan``: from a graph or a relation and a topology to a plan file, and what to think of it."""

from __future__ import annotations

import argparse
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.cli.arguments import at_least, number
from dgcl.cli.errors import CliError, reading
from dgcl.cli.files import check_output, replacing
from dgcl.cli.output import print_fields, print_json, print_table, seconds, size, step
from dgcl.cli.partition import GRAPH_HELP, load_graph
from dgcl.cli.topo import HELP as TOPOLOGY_HELP
from dgcl.cli.topo import resolve

if TYPE_CHECKING:
    from dgcl.planner import Plan, Relation
    from dgcl.topology import Topology


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="plan the communication of a partitioned graph on a machine",
        description="Plan how rows travel, and report how good that is. Give a graph, which is partitioned"
        " first, or a relation file, which says who needs what already.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("graph", metavar="GRAPH", nargs="?", help=GRAPH_HELP)
    what.add_argument("--relation", metavar="R.npz", help="relation file (see --relation-out)")
    parser.add_argument("--topology", metavar="T", required=True, help=TOPOLOGY_HELP)
    parser.add_argument("--parts", metavar="P", type=at_least(1), help="default: the devices of T")
    parser.add_argument("--part", metavar="part.npy", help="owner of each vertex (default: METIS decides)")
    parser.add_argument(
        "--method", metavar="M", default="auto", help="planner (default: auto, the best of them)"
    )
    parser.add_argument("--row-bytes", metavar="B", type=at_least(1), default=512, help="default: 512")
    parser.add_argument("--seed", metavar="S", type=at_least(0), default=0, help="default: 0")
    parser.add_argument(
        "--time-limit", metavar="S", type=number(0, open_end=True), help="stop planning after S seconds"
    )
    parser.add_argument(
        "--gap", metavar="G", type=number(0), help="stop once this near the bound (0.01: 1%%)"
    )
    parser.add_argument("--out", metavar="plan.npz", help="write the plan")
    parser.add_argument("--relation-out", metavar="R.npz", help="write the relation")
    parser.runs(plan)


def plan(args: argparse.Namespace) -> int:
    """Plan, write what was asked for, and print the outcome."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import get_planner, make_plan

    get_planner(args.method)  # an unknown method is refused before anything long is done
    _check_files(args)
    relation, topology = _problem(args)
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed, time_limit=args.time_limit)
    if args.gap is not None:
        options = replace(options, gap=args.gap)
    with step(f"planning {relation.num_classes} classes on {topology.name}"):
        made = make_plan(relation, topology, args.method, options)
    with ExitStack() as outputs:  # both files appear, or neither
        for path, result in ((args.out, made), (args.relation_out, relation)):
            if path is not None:
                result.save(outputs.enter_context(replacing(path)))
    if args.json:
        print_json(_summary(made))
    else:
        _print(made)
    return 0


def _check_files(args: argparse.Namespace) -> None:
    inputs = {
        "GRAPH": args.graph,
        "--relation": args.relation,
        "--part": args.part,
        "--topology": args.topology,
    }
    check_output("--out", args.out, inputs)
    check_output("--relation-out", args.relation_out, {**inputs, "--out": args.out})


def _problem(args: argparse.Namespace) -> tuple[Relation, Topology]:
    """Read or make the relation, and take as much of the topology as it needs."""
    if args.relation is None:
        return _partitioned(args)
    from dgcl.planner import Relation

    if args.part is not None:
        raise CliError("--part goes with a graph: a relation is partitioned already")
    with step(f"reading {args.relation}"), reading(args.relation, "relation"):
        relation = Relation.load(args.relation)
    if args.parts not in (None, relation.world_size):
        raise CliError(f"--parts {args.parts}: relation {args.relation} is for {relation.world_size} ranks")
    return relation, resolve(args.topology, relation.world_size)


def _partitioned(args: argparse.Namespace) -> tuple[Relation, Topology]:
    from dgcl.partition import check_part, partition_graph
    from dgcl.relation import build_classes

    topology = resolve(args.topology, args.parts)
    graph = load_graph(args.graph)
    if args.part is None:
        with step(f"partitioning {graph.num_nodes} vertices into {topology.num_devices} parts"):
            part = partition_graph(graph, topology.num_devices, topology=topology, seed=args.seed)
    else:
        with step(f"reading {args.part}"), reading(args.part, "part vector"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about old headers before it refuses broken ones
            part = np.load(args.part, allow_pickle=False)
            if not isinstance(part, np.ndarray):
                raise ValueError("must be one array (got an npz archive)")
            part = check_part(part, graph.num_nodes, topology.num_devices, allow_empty=True)
    with step("finding out who needs what"):
        return build_classes(graph, part, topology.num_devices).relation, topology


def _summary(made: Plan) -> dict[str, Any]:
    """What ``--json`` prints: the plan's meta without the topology, and sizes."""
    return {
        **{key: value for key, value in made.meta.items() if key != "topology"},
        "num_classes": made.relation.num_classes,
        "num_trees": made.trees.num_trees,
        "num_stages": made.num_stages,
        "boundary_vertices": made.relation.num_vertices,
        "bytes_total": made.row_bytes * made.trees.rows_moved(),
    }


def _print(made: Plan) -> None:
    relation, direct = made.relation, made.direct_seconds
    sent, needed = made.row_bytes * made.trees.rows_moved(), made.row_bytes * relation.deliveries
    print_fields(
        [
            ("machine", f"{made.topology.name}, {made.world_size} ranks"),
            ("relation", f"{relation.num_vertices} boundary vertices, {relation.deliveries} rows to deliver"),
            ("planned", f"{relation.num_classes} classes by {made.meta.get('made_by', made.method)}"),
            ("planning", seconds(made.planning_seconds)),
            ("plan", f"{made.trees.num_trees} trees, {made.num_stages} stages"),
            ("sends", f"{size(sent)} ({size(needed)} needed), rows of {size(made.row_bytes)}"),
            ("takes", f"{seconds(made.predicted_seconds)}, {made.gap:.2%} above the bound"),
            (
                "bound",
                f"{seconds(made.lower_bound_seconds)}, limited by {made.meta.get('limited_by', 'none')}",
            ),
            ("direct", "not possible: some pair has no link" if direct is None else seconds(direct)),
        ]
    )
    if made.num_stages > 1:
        rows = [(str(k), seconds(time)) for k, time in enumerate(made.stage_seconds)]
        print()
        print_table(("stage", "time"), rows)
