"""The command ``dgcl advise``: predicts time and memory of each strategy for a model, and recommends one.

`dgcl/advisor` computes; this reads options and prints. ``--scale X`` is the size of a synthetic graph here, and
``--scale NAME=X`` a change of the machine. Exit status 1: no strategy fits into memory.

Called by `dgcl/cli/__init__`. Free to change while the table, its JSON, the line for each number of ranks and the exit
status stay as docs/cli.md describes them (`tests/dgcl/cli/test_advise.py`).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, byte_size, list_of, option, refuse
from dgcl.cli.option_groups import OF_GRAPHS, add_parts, add_source
from dgcl.cli.output import print_json, say, step
from dgcl.cli.problem import load_graph, read_part
from dgcl.cli.topologies import TOPOLOGY_HELP, add_changes, machines

if TYPE_CHECKING:
    from dgcl.advisor.advice import Advice
    from dgcl.topology import Topology


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "advise",
        help="which strategy to take: time and memory of each, before anything runs",
        description="Predict for each way to train a model exactly what an epoch takes and what each rank holds, choose"
        " the simplest of the fastest that fit, and print the line that asks for it.",
    )
    add_source(parser, "synthetic")
    option(
        parser,
        "--model M",
        "gcn:602,256,41, sage:.. or gin:..: widths of the input and of each layer's result; gat:602,8x32,41"
        " with heads, as gatv2:.. and transformer:..; mgn:64,64/16 with the width of edges' rows",
        required=True,
    )
    option(parser, "--topology T,..", f"{TOPOLOGY_HELP}; several: one line each", required=True)
    option(parser, "--ranks P,..", "default: the devices of T; several: one line each", list_of(at_least(1)))
    add_changes(parser)
    option(parser, "--memory-limit SIZE", "bytes of a rank's device (default: no limit)", byte_size)
    option(parser, "--optimizer O", "adam (default), momentum or sgd", default="adam")
    option(parser, "-d, --datatype D", "float32 (default), float64, float16 or bfloat16", default="float32")
    option(parser, "--inference", "no backward, no gradients, no optimiser")
    option(
        parser,
        "--rates R",
        "of a device: here (measured on a core of this host, shared by the ranks), or GB/s of sums and GFLOP/s of"
        " products, as 900,14000 (default: by the topology's name)",
    )
    add_parts(parser)
    parser.runs(run)


def run(args: argparse.Namespace) -> int:
    """Advise, and print; 1 where nothing fits."""
    from dgcl.advisor.advice import scaled
    from dgcl.advisor.model_costs import read_model
    from dgcl.planner.synthetic import SHAPES

    if args.synthetic is None:
        refuse(args, "scale", "goes with --synthetic")
    else:
        refuse(args, OF_GRAPHS, "goes with a graph")
    model = read_model(args.model, optimizer=args.optimizer, dtype=args.datatype, training=not args.inference)
    topologies = machines(args, list(dict.fromkeys(args.ranks or [None])))
    graph: Any = SHAPES[args.synthetic].scaled(args.scale) if args.synthetic else load_graph(args)
    several = [_advice(args, graph, model, topology) for topology in topologies]
    first = several[0]
    if args.json:
        print_json(first.to_json() if len(several) == 1 else {"ranks": [each.to_json() for each in several]})
    elif len(several) > 1:
        say(scaled(several))
    else:
        say(first.table())
    return int(any(each.rows[0].refused for each in several))


def _advice(args: argparse.Namespace, graph: Any, model: Any, topology: Topology) -> Advice:
    from dgcl.advisor.choice import advise

    part = None if args.part is None else read_part(args.part, graph.num_nodes, topology.num_devices)
    with step(f"counting strategies of {topology.num_devices} ranks"):
        return advise(
            graph,
            model=model,
            topology=topology,
            part=part,
            memory_limit=args.memory_limit,
            rates=args.rates,
            seed=args.seed,
        )
