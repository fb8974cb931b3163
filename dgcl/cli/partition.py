"""The command ``dgcl partition``: decides which rank owns which vertex, writes it, and prints what that costs.

``--out part.npy`` writes owners; ``--out DIR/`` also plans, and writes for each rank a file for
``dgcl.load_comm_info``. GRAPH may be a folder of part files, whose edges are read in passes; DIR/ is not possible then.

Called by `dgcl/cli/__init__`. Free to change while its figures are those of a count edge by edge, and the same seed
gives the same parts (`tests/dgcl/cli/test_partition.py`; DIR/: `tests/dgcl/cli/test_partition_folder.py`).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.cli.arguments import at_least, option, refuse
from dgcl.cli.command_errors import CliError, one_line, reading
from dgcl.cli.option_groups import add_planning, add_seed, add_source
from dgcl.cli.output import print_fields, print_json, print_legend, print_written, say, step
from dgcl.cli.problem import load_graph, strategy_of
from dgcl.cli.result_files import check_output, replacing
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve
from dgcl.topology.table import aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.program.strategy import Strategy
    from dgcl.topology import Topology


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "partition",
        help="split a graph over ranks",
        description="Split a graph over ranks and report balance, cut, boundary and the rows of an exchange.",
    )
    add_source(parser)
    option(parser, "--topology T", f"split along its machines and sockets: {TOPOLOGY_HELP}")
    option(parser, "--ranks P", "how many; default: the devices of T", at_least(1))
    option(
        parser,
        "--partition",
        "metis, kaminpar or streaming (few edges cut), random or range; default: auto, which says what it takes",
        ("auto", "metis", "kaminpar", "streaming", "random", "range"),
        "auto",
    )
    option(
        parser,
        "--balance",
        "what metis and kaminpar make equal over parts: vertices (default), or edges: a vertex and its in-edges each",
        ("vertices", "edges"),
        "vertices",
    )
    add_seed(parser)
    add_planning(parser)
    option(
        parser,
        "--out part.npy",
        "write the owner of each vertex, int32; or DIR/: what each rank needs, planned and compiled, in a file of"
        " its own, for dgcl.load_comm_info",
    )
    parser.runs(partition)


def partition(args: argparse.Namespace) -> int:
    """Print what the parts cost, and write them where that is asked for."""
    from dgcl.partition import balance_weights, edge_files, partition_graph
    from dgcl.partition.partitioners import choose_method
    from dgcl.relation.partition_report import partition_report

    topology = _checked(args)
    num_parts = args.ranks if topology is None else topology.num_devices
    strategy = strategy_of(args, num_parts)
    weights, method, why = None, args.partition, "as asked for"
    graph: Any
    if os.path.isdir(args.graph):
        _check_passes(args)
        with step(f"reading {args.graph}"), reading(args.graph, "part files"):
            graph = edge_files(args.graph)
    else:
        graph = load_graph(args, edge_ids=_to_folder(args))
        weights = balance_weights(graph, args.balance, method)
    if method == "auto":
        method, why = choose_method(graph, weights)
    with step(f"partitioning {graph.num_nodes} vertices into {num_parts} parts"):
        part = partition_graph(
            graph,
            num_parts,
            topology=topology,
            method=method,
            seed=args.seed,
            vertex_weights=weights,
            block=getattr(strategy, "block", 1),
        )
    facts: dict[str, Any] = {"out": args.out, "num_nodes": graph.num_nodes, "method": method, "why": why}
    with step("counting rows"):
        facts |= partition_report(graph, part, num_parts).to_json()
        facts["num_edges"] = sum(facts["edges"])
    if _to_folder(args):
        facts["choice"] = _write_parts(args, graph, part, topology, strategy)
    elif args.out is not None:
        with replacing(args.out) as path, path.open("wb") as file:
            np.save(file, part, allow_pickle=False)
    if args.json:
        print_json(facts)
        return 0
    _print(facts)
    if facts.get("choice"):
        say(f"\nchoice    {facts['choice']}")
    if args.out is not None:
        say()
    print_written(("parts", args.out))
    return 0


def _checked(args: argparse.Namespace) -> Topology | None:
    """The machine, after all that can be refused was."""
    from dgcl.planner.methods import get_planner

    if args.topology is None and args.ranks is None:
        raise CliError("--ranks or --topology is needed: which machine the parts are to run on")
    get_planner(args.method)
    if _to_folder(args):
        _check_folder(args.out)
    else:
        refuse(args, "strategy method row-bytes", "goes with --out DIR/, where a plan is made")
        check_output("--out", args.out, {"GRAPH": args.graph, "--topology": args.topology})
    return resolve(args.topology, args.ranks) if args.topology else None


def _to_folder(args: argparse.Namespace) -> bool:
    """Whether what each rank needs is written, not the parts alone."""
    return (args.out or "").endswith("/")


def _check_passes(args: argparse.Namespace) -> None:
    """Refuse what needs a graph in memory."""
    rule = "goes with a graph file: of a folder of part files edges are read in passes"
    refuse(args, "balance undirected strategy", rule)
    if _to_folder(args):
        raise CliError(f"--out DIR/ {rule}")


def _check_folder(out: str) -> None:
    """Refuse a folder that parts cannot be written to before anything is computed."""
    from dgcl.prepare.part_files import is_of_parts

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise CliError(f"--out {out}: is a file, name a folder, or leave out the slash")
    if folder.is_dir() and any(not is_of_parts(entry.name) for entry in folder.iterdir()):
        raise CliError(f"--out {out}: has other files in it, name a new folder")
    check_output("--out", str(folder / "plan.npz" if folder.is_dir() else folder), {})


def _write_parts(
    args: argparse.Namespace,
    graph: Graph,
    part: NDArray[np.int32],
    topology: Topology | None,
    strategy: Strategy,
) -> str:
    """Plan and write; return what the strategy says of itself."""
    from dgcl.planner import PlanOptions
    from dgcl.prepare.part_files import save_parts
    from dgcl.prepare.shares import prepare_inputs

    machine = topology or resolve(f"uniform{args.ranks}")
    options = PlanOptions(row_bytes=args.row_bytes, seed=args.seed)
    with step("planning"):
        inputs = prepare_inputs(
            graph,
            machine.num_devices,
            machine,
            part=part,
            method=args.method,
            options=options,
            strategy=strategy,
        )
    try:
        save_parts(args.out, inputs)
    except OSError as error:
        raise CliError(f"--out {args.out}: {one_line(error)}") from error
    return inputs[0].choice


def _print(facts: dict[str, Any]) -> None:
    vertices, edges = facts["num_nodes"], facts["num_edges"]
    print_fields(
        [
            ("graph", f"{vertices} vertices, {edges} edges"),
            ("method", f"{facts['method']} ({facts['why']})"),
            (
                "balance",
                f"{facts['balance']:.3f} in vertices, {facts['edge_balance']:.3f} in edges (1: even)",
            ),
            ("cut", f"{facts['cut_edges']} edges ({facts['cut_edges'] / max(edges, 1):.1%})"),
            (
                "boundary",
                f"{facts['boundary_vertices']} vertices ({facts['boundary_vertices'] / vertices:.1%})",
            ),
            ("exchange", f"{facts['deliveries']} rows per layer"),
        ]
    )
    say()
    columns = (facts[name] for name in ("sizes", "edges", "cut", "boundary_sizes", "halo_sizes"))
    rows = [[str(rank), *map(str, row)] for rank, row in enumerate(zip(*columns, strict=True))]
    say(aligned(["part", "vertices", "edges", "cut", "boundary", "halo"], rows))
    print_legend(
        {
            "cut": "edges from another part, which read a row that must arrive",
            "boundary": "vertices of the part that some other part reads",
            "halo": "rows of other parts that the part reads: what arrives before each layer",
        }
    )
