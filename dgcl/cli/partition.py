"""``dgcl partition``: which rank owns which vertex, and what that split costs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.cli.arguments import BALANCES, PLACEMENTS, at_least, option, refuse
from dgcl.cli.errors import CliError, one_line, reading
from dgcl.cli.files import check_output, replacing
from dgcl.cli.output import print_fields, print_json, print_legend, print_table, step
from dgcl.cli.parts import predicted_parts, prediction_facts, print_predicted
from dgcl.cli.placing import find_placement, placement_facts, placement_line
from dgcl.cli.replicas import add_replication, check_method, explained, wanted_copies
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.grid.grid import Grid
    from dgcl.prepare.parts_choice import PredictedParts
    from dgcl.program.strategy import Strategy
    from dgcl.relation.partition_report import PartitionReport
    from dgcl.topology import Topology

GRAPH_HELP = "graph file: npz, text edge list (also .gz) or Matrix Market"
ROW_BYTES = 512
HOPS = 3  # the replication factors of the paper's Figure 4


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="split a graph over ranks",
        description="Split a graph over ranks and report balance, cut, boundary and the replication factor:"
        " how many ranks hold a vertex on average if each holds its own and all up to 1, 2 or 3 hops away.",
    )
    add_graph(parser)
    option(parser, "--parts P", "number of parts", at_least(1), required=True)
    option(parser, "--topology T", f"split along its machines and sockets: {TOPOLOGY_HELP}")
    option(parser, "--place", "number the parts so that plans on T are fastest (needs --topology)")
    option(
        parser,
        "--method M",
        "metis (default), random, range, or auto: metis or random by the predicted seconds of an aggregation on T",
        default="metis",
    )
    option(
        parser,
        "--balance",
        "what metis makes equal over parts: vertices (default), or edges: a vertex and its in-edges each",
        BALANCES,
        "vertices",
    )
    option(parser, "--seed S", "default: 0", at_least(0), 0)
    option(
        parser,
        "--out part.npy",
        "the owner of each vertex, int32; or DIR/: what each rank needs, planned and compiled, in a file of"
        " its own, for dgcl.load_comm_info",
        required=True,
    )
    option(
        parser, "--row-bytes B", "for the plan in DIR/, --place and --method auto; default: 512", at_least(1)
    )
    option(parser, "--planner M", "for the plan in DIR/: see dgcl plan --method (default: auto)")
    option(
        parser,
        "--edges",
        "for DIR/: which rank sums an edge u->v of an aggregation: the owner of v (head, the default), of u"
        " (tail), whichever moves fewer rows (cover), or what is predicted fastest (auto)",
        PLACEMENTS,
    )
    option(
        parser,
        "--grid R,K,S",
        "for DIR/: slices of rows on a grid of parts, depth and slices, or 1d, 1.5d, 2d, 3d (dgcl grids)",
    )
    add_replication(parser)
    parser.runs(partition)


def add_graph(parser: Any) -> None:
    """Declare the graph, and how it is read."""
    parser.add_argument("graph", metavar="GRAPH", help=GRAPH_HELP)
    add_undirected(parser)


def add_parts(parser: Any) -> None:
    """Declare who owns which vertex, and the seed for METIS and the planner."""
    option(parser, "--part part.npy", "owner of each vertex (default: METIS decides)")
    option(parser, "--seed S", "default: 0", at_least(0), 0)


def add_undirected(parser: Any) -> None:
    """Declare the option that says how a text edge list is read."""
    option(
        parser,
        "--undirected",
        "each line of a text edge list is an edge both ways (default: what its header says)",
    )


def load_graph(args: argparse.Namespace) -> Graph:
    """Read a graph file of any kind that dgcl reads; log how an edge list was read."""
    from dgcl.graph.files import read_graph

    with step(f"reading {args.graph}"), reading(args.graph, "graph"):
        file = read_graph(args.graph, undirected=args.undirected or None)
    if file.undirected is not None:
        ways = "both ways" if file.undirected else "one way, u -> v; --undirected reads both"
        print(f"{args.graph}: each line 'u v' read as an edge {ways}", file=sys.stderr)
    return file.graph


def partition(args: argparse.Namespace) -> int:
    """Write the part vector and print what it costs."""
    from dgcl.grid.grid import as_grid
    from dgcl.partition import METHODS, balance_weights, partition_graph
    from dgcl.partition.replication import replication_factors
    from dgcl.prepare.parts_choice import AUTO, fastest_parts
    from dgcl.relation.classes import halo_classes
    from dgcl.relation.partition_report import partition_report

    if args.method not in (*METHODS, AUTO):
        raise CliError(f"--method must be one of {', '.join((*METHODS, AUTO))} (got {args.method!r})")
    to_folder = args.out.endswith("/")
    if args.balance != "vertices" and args.method not in (AUTO, "metis"):
        raise CliError(f"--balance edges goes with --method metis (got {args.method})")
    if args.method == AUTO and not args.topology:
        raise CliError("--method auto needs --topology: what machine the parts are to run on")
    _check_planning(args, to_folder)
    if to_folder:
        _check_folder(args.out)
    else:
        check_output("--out", args.out, {"GRAPH": args.graph, "--topology": args.topology})
    if args.place and not args.topology:
        raise CliError("--place needs --topology: which machine the parts are to run on")
    topology = resolve(args.topology, args.parts) if args.topology else None
    grid = as_grid(args.grid, args.parts) if args.grid is not None else None
    graph = load_graph(args)
    predicted: list[PredictedParts] = []
    if args.method == AUTO:
        assert topology is not None
        predicted = predicted_parts(args, graph, topology)
        part = fastest_parts(predicted).part
    else:
        with step(f"partitioning {graph.num_nodes} vertices into {args.parts} parts"):
            part = partition_graph(
                graph,
                args.parts,
                topology=topology,
                method=args.method,
                seed=args.seed,
                vertex_weights=balance_weights(graph, args.balance, args.method),
                block=1 if grid is None else grid.depth * grid.slices,
            )
    before = None
    if args.balance == "edges":
        with step("partitioning by numbers of vertices, to compare"):
            even = partition_graph(graph, args.parts, topology=topology, seed=args.seed)
        before = partition_report(graph, even, args.parts)
    placement = None
    if args.place and topology is not None:
        placement = find_placement(halo_classes(graph, part, args.parts).relation, topology)
        part = placement.device_of_part.astype(part.dtype)[part]
    with step("counting copies"):
        report = partition_report(graph, part, args.parts)
        replication = replication_factors(graph, part, args.parts, HOPS)
    choice = ""
    if to_folder:
        choice = _write_parts(args, graph, part, topology, grid)
    else:
        with replacing(args.out) as path, path.open("wb") as file:
            np.save(file, part, allow_pickle=False)
    if args.json:
        sizes = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
        more: dict[str, Any] = {} if placement is None else {"placement": placement_facts(placement)}
        if choice:
            more["choice"] = choice
        if predicted:
            more["predicted"] = {each.method: prediction_facts(each) for each in predicted}
        if before is not None:
            more["balanced_by_vertices"] = before.to_json()
        print_json({"out": args.out, **sizes, **report.to_json(), "replication": replication, **more})
    else:
        _print(args.out, graph, report, replication, before)
        if predicted:
            print_predicted(predicted)
        if placement is not None:
            print(f"\nplacement {placement_line(placement)}")
        if choice:
            print(f"\nchoice    {choice}")
    return 0


def _check_planning(args: argparse.Namespace, to_folder: bool) -> None:
    """Refuse options for a plan where there is none, or that do not go together."""
    from dgcl.planner.methods import get_planner
    from dgcl.prepare.parts_choice import AUTO
    from dgcl.replication import METHOD

    if not to_folder:
        refuse(args, "planner hops edges grid", "goes with --out DIR/, where a plan is made")
        if not args.place and args.method != AUTO:
            refuse(args, "row-bytes", "goes with --out DIR/, --place or --method auto, which plan")
    args.row_bytes = args.row_bytes or ROW_BYTES
    planner = args.planner or "auto"
    check_method(args, "--planner", planner, weighs_work=args.method == AUTO)
    if planner != METHOD:  # which is not one of the planner's
        get_planner(planner)
    if args.grid is not None:
        refuse(args, "edges hops place", "goes without --grid: a grid says who sums an edge, of whole rows")
    if args.hops is not None and args.edges not in (None, "head"):
        raise CliError("--edges must be head with --hops: replicas hold complete neighbourhoods")
    if args.hops is not None and not args.topology:
        raise CliError("--hops needs --topology: it says which ranks share a machine")


def _check_folder(out: str) -> None:
    """Refuse a folder that parts cannot be written to before anything is computed."""
    from dgcl.prepare.part_files import is_of_parts

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise CliError(f"--out {out}: is a file, name a folder, or leave out the slash")
    if folder.is_dir() and any(not is_of_parts(entry.name) for entry in folder.iterdir()):
        raise CliError(f"--out {out}: has other files in it, name a new folder")
    if not folder.parent.is_dir():
        raise CliError(f"--out {out}: there is no folder {folder.parent}")
    if not os.access(folder if folder.is_dir() else folder.parent, os.W_OK):
        raise CliError(f"--out {out}: no permission to write there")


def _write_parts(
    args: argparse.Namespace,
    graph: Graph,
    part: NDArray[np.int32],
    topology: Topology | None,
    grid: Grid | None,
) -> str:
    """Plan and write; return why this plan, where there was a choice."""
    from dgcl.build import prepare
    from dgcl.grid.strategy import GridPlacement
    from dgcl.planner import PlanOptions
    from dgcl.prepare.part_files import save_shares
    from dgcl.topology import resolve_topology
    from dgcl.workers.strategy import EdgePlacement

    planner = args.planner or "auto"
    machine = topology if topology is not None else resolve_topology(f"uniform{args.parts}")
    replication, source = wanted_copies(args, planner, machine)
    strategy: Strategy = replication if args.edges in (None, "head") else EdgePlacement(args.edges)
    if grid is not None and not grid.is_1d:
        strategy = GridPlacement(grid)
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed)
    with step("planning"):
        shares = prepare(
            graph, args.parts, machine, part=part, method=planner, options=options, strategy=strategy
        )
    try:
        save_shares(args.out, shares)
    except OSError as error:
        raise CliError(f"--out {args.out}: {one_line(error)}") from error
    return explained(shares[0].choice, replication.work, source)


def _print(
    out: str,
    graph: Graph,
    report: PartitionReport,
    replication: NDArray[np.float64],
    before: PartitionReport | None,
) -> None:
    """``before``: of parts with equal numbers of vertices, where edges were balanced instead."""
    edges = max(graph.num_edges, 1)
    print_fields(
        [
            ("graph", f"{graph.num_nodes} vertices, {graph.num_edges} edges"),
            ("parts", f"{report.num_parts}, written to {out}"),
            ("balance", f"{report.balance:.3f} in vertices, {report.edge_balance:.3f} in edges (1: even)"),
            ("cut", f"{report.cut_edges} edges ({report.cut_edges / edges:.1%})"),
            (
                "boundary",
                f"{report.boundary_vertices} vertices ({report.boundary_vertices / graph.num_nodes:.1%})",
            ),
            ("exchange", f"{report.deliveries} rows per layer"),
        ]
        + [
            (f"{hops} hop{'s' * (hops > 1)}", f"{factor:.3f} copies of each vertex, without communication")
            for hops, factor in enumerate(replication, 1)
        ]
    )
    print()
    columns = [report.sizes, report.edges, report.cut, report.boundary_sizes, report.halo_sizes]
    names = ["part", "vertices", "edges", "cut", "boundary", "halo"]
    if before is not None:
        print(
            f"balanced by vertices: {before.edge_balance:.3f} in edges, {before.deliveries} rows per layer\n"
        )
        columns += [before.edges, before.halo_sizes]
        names += ["edges before", "halo before"]
    rows = [[str(rank), *map(str, row)] for rank, row in enumerate(zip(*columns, strict=True))]
    print_table(names, rows)
    print_legend(_LEGEND)


_LEGEND = {
    "cut": "edges from another part, which read a row that must arrive",
    "boundary": "vertices of the part that some other part reads",
    "halo": "rows of other parts that the part reads: what arrives before each layer",
}
