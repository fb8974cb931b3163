"""What a plan is made from: a relation and a machine of its size.

The relation is read from a file, drawn at random, or found in a partitioned graph.
"""

from __future__ import annotations

import argparse
import os
import warnings
from typing import TYPE_CHECKING

import numpy as np

from dgcl.cli.arguments import Parser, at_least, number, option, refuse
from dgcl.cli.errors import CliError, reading
from dgcl.cli.output import step
from dgcl.cli.partition import GRAPH_HELP, add_parts, add_undirected, load_graph
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.planner import Relation
    from dgcl.relation.classes import ItemClasses
    from dgcl.topology import Topology


def add_problem(parser: Parser) -> None:
    """Declare the arguments that say what is to be planned, and where."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("graph", metavar="GRAPH", nargs="?", help=GRAPH_HELP)
    option(what, "--relation R.npz", "relation file (see --relation-out)")
    option(
        what,
        "--synthetic NAME",
        "draw a relation of the size of a graph: reddit, com-orkut, web-google or wiki-talk",
    )
    add_undirected(parser)
    option(parser, "--scale X", "of --synthetic; default: 1", number(0, open_end=True))
    option(parser, "--topology T", TOPOLOGY_HELP, required=True)
    option(parser, "--parts P", "default: the devices of T", at_least(1))
    add_parts(parser)


def check_problem(args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if args.graph is None:
        refuse(args, "part", "goes with a graph: a relation is partitioned already")
    if args.synthetic is None:
        refuse(args, "scale", "goes with --synthetic")


def name_of_problem(args: argparse.Namespace) -> str:
    """What is planned, for titles: a file's name without its folder, or the name of a synthetic relation."""
    if args.synthetic is not None:
        return f"synthetic {args.synthetic}" + (f" x {args.scale:g}" if args.scale else "")
    return os.path.basename(args.graph or args.relation)


def problem(args: argparse.Namespace) -> tuple[Relation, Topology]:
    """Read or make the relation, and take as much of the topology as it needs."""
    check_problem(args)
    if args.relation is not None:
        return _from_file(args.relation, args)
    topology = resolve(args.topology, args.parts)
    if args.synthetic is not None:
        return _drawn(args, topology.num_devices), topology
    return graph_in_parts(args, topology)[2].relation, topology


def _from_file(path: str, args: argparse.Namespace) -> tuple[Relation, Topology]:
    from dgcl.planner import Relation

    with step(f"reading {path}"), reading(path, "relation"):
        relation = Relation.load(path)
    if args.parts not in (None, relation.world_size):
        raise CliError(f"--parts {args.parts}: relation {path} is for {relation.world_size} ranks")
    return relation, resolve(args.topology, relation.world_size)


def _drawn(args: argparse.Namespace, world_size: int) -> Relation:
    from dgcl.planner.synthetic import synthetic_relation

    with step(f"drawing {args.synthetic}"):
        return synthetic_relation(args.synthetic, world_size, seed=args.seed, scale=args.scale or 1.0)


def graph_in_parts(
    args: argparse.Namespace, topology: Topology
) -> tuple[Graph, NDArray[np.int32], ItemClasses]:
    """Read the graph and its parts, or part it; and find out who needs what."""
    from dgcl.partition import partition_graph
    from dgcl.relation.classes import halo_classes

    graph = load_graph(args)
    if args.part is None:
        with step(f"partitioning {graph.num_nodes} vertices into {topology.num_devices} parts"):
            part = partition_graph(graph, topology.num_devices, topology=topology, seed=args.seed)
    else:
        part = read_part(args.part, graph.num_nodes, topology.num_devices)
    with step("finding out who needs what"):
        return graph, part, halo_classes(graph, part, topology.num_devices)


def read_part(path: str, num_nodes: int, num_parts: int) -> NDArray[np.int32]:
    """Read the owner of each vertex from an npy file, and check it."""
    from dgcl.partition import check_part
    from dgcl.topology.read_file import open_file

    with step(f"reading {path}"), reading(path, "part vector"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about old headers before it refuses broken ones
        try:
            with open_file(path) as file:
                part = np.load(file, allow_pickle=False)
        except (EOFError, ValueError):  # numpy's words would be of pickle
            raise ValueError("is no array as np.save writes it (.npy)") from None
        if not isinstance(part, np.ndarray):
            raise ValueError("must be one array (got an npz archive)")
        return check_part(part, num_nodes, num_parts, allow_empty=True)
