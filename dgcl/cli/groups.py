"""Groups of options that several verbs share, each declared once."""

from __future__ import annotations

from typing import Any

from dgcl.cli.arguments import at_least, option
from dgcl.cli.topologies import TOPOLOGY_HELP

GRAPH_HELP = "graph file: npz, text edge list (also .gz) or Matrix Market"


def add_graph(parser: Any) -> None:
    """Declare the graph, and how it is read."""
    parser.add_argument("graph", metavar="GRAPH", help=GRAPH_HELP)
    _add_undirected(parser)


def add_source(parser: Any, *, required: bool) -> Any:
    """Declare a graph or a relation, and return their group: a verb may add what can be there instead."""
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument("graph", metavar="GRAPH", nargs="?", help=GRAPH_HELP)
    option(source, "--relation R.npz", "relation file of `dgcl plan --relation-out`")
    _add_undirected(parser)
    return source


def add_parts(parser: Any) -> None:
    """Declare who owns which vertex, and the seed for METIS and the planner."""
    option(parser, "--part part.npy", "owner of each vertex of the graph (default: METIS decides)")
    add_seed(parser)


def add_seed(parser: Any) -> None:
    """Declare the seed."""
    option(parser, "--seed S", "default: 0", at_least(0), 0)


def add_machine(parser: Any, topology: str = "", ranks: str = "", **settings: Any) -> None:
    """Declare the machine and the number of its ranks, with what they are for; settings are those of the topology."""
    option(parser, "--topology T", f"{topology}{TOPOLOGY_HELP}", **settings)
    option(parser, "--ranks P", ranks or "how many; default: the devices of T", at_least(1))


def add_planning(parser: Any) -> None:
    """Declare what is exchanged, and how that is planned."""
    option(
        parser,
        "--strategy S",
        "what ranks exchange: halo (default), tail, cover[:machine], grid:R,K,S, replicas:K; see `dgcl advise`",
        default="halo",
    )
    option(parser, "--method M", "planner (default: auto, the best known)", default="auto")
    option(parser, "--row-bytes B", "bytes of a vertex row; default: 512", at_least(1), 512)


def _add_undirected(parser: Any) -> None:
    option(
        parser,
        "--undirected",
        "each line of a text edge list is an edge both ways (default: what its header says)",
    )
