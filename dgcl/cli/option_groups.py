"""Declares the options that several commands share: the graph and how it is read, its parts, the seed, the planning.

A group is declared here once, so that the same option has the same name, type and help in each command. What a command
may take in a graph's place (a relation, a synthetic graph, a pattern) is named by the caller.

Called by `advise`, `bench`, `partition` and `plan`. Free to change while docs/cli.md has each command's usage and all
of its options, and the commands on other pages are understood (`tests/dgcl/cli/test_documented.py`).
"""

from typing import Any

from dgcl.cli.arguments import at_least, option

_INSTEAD: dict[str, tuple[Any, ...]] = {
    "relation": ("--relation R.npz", "relation file of `dgcl plan --relation-out`"),
    "synthetic": (
        "--synthetic NAME",
        "no graph, but the sizes of one: reddit, com-orkut, web-google or wiki-talk",
        ("reddit", "com-orkut", "web-google", "wiki-talk"),
    ),
    "pattern": (
        "--pattern NAME",
        "alltoall, allgather or ring",
        ("alltoall", "allgather", "ring"),
    ),
}


def add_source(parser: Any, *instead: str, required: bool = True) -> None:
    """Declare the graph and how it is read, and what can be there in its place."""
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "graph",
        metavar="GRAPH",
        nargs="?",
        help="graph file: npz, text edge list, METIS or Matrix Market; text may be compressed",
    )
    for name in instead:
        option(source, *_INSTEAD[name])
    option(
        parser,
        "--undirected",
        "each line of a text edge list is an edge both ways (default: what its header says)",
    )
    option(parser, "--compact", "number the ids that occur in a text edge list 0, 1, ... in ascending order")
    option(
        parser, "--num-nodes N", "vertices of a text edge list, whose last ones may have no edge", at_least(1)
    )
    option(
        parser,
        "--format",
        "what GRAPH is, where it looks like something else; edges: each line is one",
        ("edges", "metis", "mtx", "npz"),
    )


#: What goes with a graph alone.
OF_GRAPHS = "part undirected compact num-nodes format"


def add_seed(parser: Any) -> None:
    """Declare the seed for METIS and the planner."""
    option(parser, "--seed S", "default: 0", at_least(0), 0)


def add_parts(parser: Any) -> None:
    """Declare who owns which vertex, and the seed."""
    option(parser, "--part part.npy", "owner of each vertex of the graph (default: METIS decides)")
    add_seed(parser)


def add_planning(parser: Any) -> None:
    """Declare what is exchanged, and how that is planned."""
    option(
        parser,
        "--strategy S",
        "what ranks exchange: halo (default), tail, cover[:machine], grid:R,K,S; see `dgcl advise`",
        default="halo",
    )
    option(parser, "--method M", "planner (default: auto, the best known)", default="auto")
    option(parser, "--row-bytes B", "bytes of a vertex row; default: 512", at_least(1), 512)
