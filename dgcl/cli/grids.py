"""``dgcl grids`` and ``dgcl plan --grid``: slices of rows on parts x depth x slices, counted and planned offline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import Parser, at_least, option, refuse
from dgcl.cli.edges import check_exchanges, print_exchanges
from dgcl.cli.errors import CliError
from dgcl.cli.output import print_json, print_legend, print_table, print_written, seconds, size, step
from dgcl.cli.partition import add_graph, add_parts
from dgcl.cli.plans import save_plans
from dgcl.cli.problem import graph_in_parts
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.grid.counts import Counts
    from dgcl.grid.grid import Grid
    from dgcl.grid.plans import GridPlan
    from dgcl.planner import PlanOptions
    from dgcl.topology import Topology

_ITEMSIZE = 4  # float32


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="what each grid of so many ranks moves and holds",
        description="Count, for every grid (parts,depth,slices) of P ranks, what a rank receives in an aggregation and"
        " which edges it holds, beside what the published algorithm receives in a layer; with a topology also what"
        " both exchanges are predicted to take. All grids have the same owners of vertices.",
    )
    add_graph(parser)
    parser.add_argument("--ranks", dest="parts", metavar="P", type=at_least(1), required=True)
    option(parser, "--width F", "float32 elements of a row; default: 128", at_least(1), 128)
    option(parser, "--topology T", f"also predict seconds: {TOPOLOGY_HELP}")
    option(parser, "--method M", "planner (default: auto)", default="auto")
    add_parts(parser)
    parser.runs(grids)


def grids(args: argparse.Namespace) -> int:
    """Print a line for each legal grid."""
    from dgcl.grid.grid import legal_grids
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import get_planner
    from dgcl.topology import resolve_topology

    get_planner(args.method)  # refused before anything long is done
    machine = (
        resolve(args.topology, args.parts) if args.topology else resolve_topology(f"uniform{args.parts}")
    )
    graph, part, _ = graph_in_parts(args, machine)
    options = PlanOptions(row_bytes=args.width * _ITEMSIZE, seed=args.seed)
    facts = []
    legal = legal_grids(args.parts)
    with step(f"{len(legal)} grids") as progress:
        for grid in legal:
            facts.append(
                _facts(graph, part, grid, args, machine if args.topology else None, args.method, options)
            )
            progress.done(len(facts) / len(legal))
    if args.json:
        print_json({"num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "grids": facts})
        return 0
    header = ["grid", "edges", "max/mean", "rows in", "most", "bytes in", "most", "published"]
    print_table([*header, "seconds"] if args.topology else header, [_line(one) for one in facts])
    print_legend(
        {
            "grid": "parts, depth, slices",
            "edges, max/mean": "of a rank on average, and the fullest over that",
            "rows in, bytes in, most": "slices of rows that a rank receives in an aggregation, forward, on average"
            " and at most; the same in bytes",
            "published": "bytes that the published algorithm of that shape receives in a layer, on average",
        }
    )
    return 0


def _facts(
    graph: Graph,
    part: NDArray[np.int32],
    grid: Grid,
    args: argparse.Namespace,
    topology: Topology | None,
    method: str,
    options: PlanOptions,
) -> dict[str, Any]:
    """A grid as JSON values; rows are slices of rows, in an aggregation, forward."""
    from dgcl.grid.counts import count_needs
    from dgcl.grid.needs import find_needs
    from dgcl.grid.plans import plan_grid
    from dgcl.grid.published import published_words

    needs = find_needs(graph, part, grid)
    facts = _counts(count_needs(needs), args.width)
    published = published_words(graph, part, grid, args.width) * _ITEMSIZE
    facts["published_bytes"] = {"mean": published.mean(), "most": published.max()}
    if topology is not None:
        plan = plan_grid(needs, topology, method, options)
        facts.update(_seconds(plan))
    return facts


def _counts(counts: Counts, width: int) -> dict[str, Any]:
    received = counts.expanded + counts.folded
    in_bytes = counts.received_bytes(width, _ITEMSIZE)
    return {
        "grid": [counts.grid.parts, counts.grid.depth, counts.grid.slices],
        "edges": counts.edges.tolist(),
        "imbalance": counts.imbalance,
        "expanded": counts.expanded.tolist(),
        "folded": counts.folded.tolist(),
        "rows": {"mean": received.mean(), "most": received.max()},
        "bytes": {"mean": in_bytes.mean(), "most": in_bytes.max()},
    }


def _seconds(plan: GridPlan) -> dict[str, Any]:
    return {
        "expand_seconds": plan.expand.plan.predicted_seconds,
        "fold_seconds": plan.fold.predicted_seconds,
        "exchange_seconds": plan.exchange_seconds,
        "lower_bound_seconds": plan.bound_seconds,
    }


def _line(facts: dict[str, Any]) -> list[str]:
    edges = facts["edges"]
    line = [
        ",".join(map(str, facts["grid"])),
        f"{sum(edges) / len(edges):.0f}",
        f"{facts['imbalance']:.2f}",
        f"{facts['rows']['mean']:.0f}",
        str(facts["rows"]["most"]),
        size(int(facts["bytes"]["mean"])),
        size(int(facts["bytes"]["most"])),
        size(int(facts["published_bytes"]["mean"])),
    ]
    if "exchange_seconds" in facts:
        line.append(seconds(facts["exchange_seconds"]))
    return line


def add_grid(parser: Parser) -> None:
    """Declare the option of ``dgcl plan`` and ``dgcl partition``."""
    option(
        parser,
        "--grid R,K,S",
        "slices of rows on a grid of parts, depth and slices, or 1d, 1.5d, 2d, 3d; dgcl grids shows what each"
        " moves",
    )


def plan_one_grid(args: argparse.Namespace, options: PlanOptions) -> int:
    """Plan both exchanges of a grid, and print what they take."""
    from dgcl.grid.grid import as_grid
    from dgcl.grid.needs import find_needs
    from dgcl.grid.plans import plan_grid

    refuse(args, "edges work", "goes without --grid: a grid says who sums an edge")
    check_exchanges(args, "--grid")
    if args.row_bytes % _ITEMSIZE:
        raise CliError(
            f"--row-bytes must be a multiple of {_ITEMSIZE} with --grid: slices are of float32 (got {args.row_bytes})"
        )
    topology = resolve(args.topology, args.parts)
    grid = as_grid(args.grid, topology.num_devices)
    graph, part, _ = graph_in_parts(args, topology)
    with step(f"planning both exchanges of grid ({grid})"):
        plan = plan_grid(find_needs(graph, part, grid), topology, args.method, options)
    save_plans((args.out, plan.expand.plan), (args.fold_out, plan.folded.plan))
    facts = {**_counts(plan.counts, options.row_bytes // _ITEMSIZE), **_seconds(plan)}
    if args.json:
        print_json(facts)
        return 0
    travel = {"rows_expanded": plan.counts.expanded.sum(), "rows_folded": plan.counts.folded.sum()}
    per_vertex = sum(travel.values()) / grid.slices / graph.num_nodes
    print_exchanges({str(grid): {**facts, **travel, "rows_per_vertex": per_vertex}})
    print_written(("plan of the slices of rows", args.out), ("plan of the partial sums", args.fold_out))
    return 0
