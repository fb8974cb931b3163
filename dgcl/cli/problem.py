"""Reads what commands plan for: a graph file and its parts, or a relation file; and the strategy.

How an edge list was read (each line one way, or both) is said on standard error: nothing in the file may tell. Without
a part vector the graph is partitioned, along the topology's machines.

Called by `advise`, `bench_cases`, `partition` and `plan`. Free to change while a graph and its relation give the same
plan (`tests/dgcl/cli/test_plan.py`), and damaged graphs, relations and part vectors are refused
(`tests/dgcl/cli/test_bad_input.py`).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np

from dgcl.cli.command_errors import CliError, reading
from dgcl.cli.output import say, step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.planner import Relation
    from dgcl.program.strategy import Strategy
    from dgcl.topology import Topology


def load_graph(args: argparse.Namespace, *, edge_ids: bool = True) -> Graph:
    """Read a graph file of any kind that dgcl reads; log how an edge list was read."""
    from dgcl.graph.graph_files import read_graph

    with (
        step(f"reading {args.graph}"),
        reading(args.graph, "graph"),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        file = read_graph(
            args.graph,
            undirected=args.undirected or None,
            compact=args.compact,
            num_nodes=args.num_nodes,
            format=args.format,
            edge_ids=edge_ids,
        )
    for warning in warned:
        say(warning.message, file=sys.stderr)
    if file.undirected is not None:
        ways = "both ways" if file.undirected else "one way, u -> v; --undirected reads both"
        say(f"{args.graph}: each line 'u v' read as an edge {ways}", file=sys.stderr)
    return file.graph


def load_relation(path: str, num_ranks: int | None) -> Relation:
    """Read a relation file, of so many ranks where that is given."""
    from dgcl.planner import Relation

    with step(f"reading {path}"), reading(path, "relation"):
        relation = Relation.load(path)
    if num_ranks not in (None, relation.world_size):
        raise CliError(f"--ranks {num_ranks}: relation {path} is for {relation.world_size} ranks")
    return relation


def strategy_of(args: argparse.Namespace, num_ranks: int) -> Strategy:
    """What arranges ``--strategy``; refuse one that exchanges nothing else than halo rows."""
    from dgcl.advisor.spelling import CALLED, read_strategy

    described = read_strategy(args.strategy)
    if described.name in CALLED:
        windows = f"comm.aggregator(windows={described.argument})"
        call = windows if described.name == "windows" else described.line
        raise CliError(f"--strategy {described} exchanges what halo does: take that here, then call {call}")
    return described.layout(num_ranks)


def graph_in_parts(
    args: argparse.Namespace, topology: Topology, block: int = 1
) -> tuple[Graph, NDArray[np.int32]]:
    """Read the graph and its parts, or part it; ``block`` consecutive ranks get vertices that are close."""
    from dgcl.partition import partition_graph

    graph, num_parts = load_graph(args), topology.num_devices
    if args.part is not None:
        return graph, read_part(args.part, graph.num_nodes, num_parts)
    with step(f"partitioning {graph.num_nodes} vertices into {num_parts} parts"):
        return graph, partition_graph(graph, num_parts, topology=topology, seed=args.seed, block=block)


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
        return check_part(part, num_nodes, num_parts)
