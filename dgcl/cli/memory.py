"""``dgcl memory``: what each rank will hold, by name, and how long an epoch will take, before anything runs."""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dgcl.cli.arguments import at_least, list_of, number, option, refuse
from dgcl.cli.errors import CliError
from dgcl.cli.groups import add_parts, add_source
from dgcl.cli.output import print_fields, print_json, print_legend, print_table, seconds, size, step
from dgcl.cli.problem import graph_in_parts
from dgcl.cli.topologies import TOPOLOGY_HELP, resolve

if TYPE_CHECKING:
    from dgcl.prepare.shares import Share
    from dgcl.replication.work import Work

#: Layers that can be counted; what each does with the rows x of its input.
MODELS = {
    "gcn": "relu(W sum(x))",
    "sage": "relu(W mean(x) + V x)",
    "gin": "relu(V relu(W (x + sum(x))))",
}
OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0}  # numbers that are kept for each parameter
TYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

#: What no figure counts.
LEFT_OUT = {
    "bytes": "temporary results that autograd gives up within a layer, memory that torch keeps but does not use, the"
    " framework's own graph objects, the loss, Python itself",
    "epoch": "the loss, sums of parameter gradients, the optimiser, dropout, and waiting for ranks that are late; bytes"
    " on the wire overlap with nothing",
}


def add_parser(verbs: Any, name: str) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        name,
        help="predict the memory of each rank, and the time of an epoch",
        description="Partition, plan and compile as a job would, and count what each rank will hold, by name, and how"
        " long an epoch will take: exchanges by the plan and the topology, layers by what an edge and a row cost.",
    )
    add_source(parser)
    option(parser, "--ranks P", "how many", at_least(1), required=True)
    option(
        parser,
        "--widths D0,D1,..",
        "elements of a row of the input and of each layer's result",
        list_of(at_least(1)),
        required=True,
    )
    layers = "; ".join(f"{name} is {rule}" for name, rule in MODELS.items())
    option(parser, "--model", f"layers (default: gcn): {layers}", MODELS, "gcn")
    option(parser, "--inference", "no backward, no gradients, no optimiser")
    option(parser, "--optimizer", "default: adam", OPTIMIZERS, "adam")
    option(parser, "-d, --datatype", "default: float32", TYPES, "float32")
    option(
        parser, "--topology T", f"predict an epoch on it, e.g. what `topo calibrate` wrote: {TOPOLOGY_HELP}"
    )
    option(
        parser,
        "--work E,R",
        "nanoseconds that the widest layer takes a rank for an edge and for a row, forward (default: measured"
        " on this host's CPU)",
        _work,
    )
    add_parts(parser)
    parser.runs(memory)


def memory(args: argparse.Namespace) -> int:
    """Count, and print."""
    from dgcl.planner import PlanOptions
    from dgcl.prepare.shares import prepare

    if len(args.widths) < 2:
        raise CliError(f"--widths must be two numbers or more, e.g. 602,256,41 (got {args.widths[0]})")
    if args.topology is None:
        refuse(args, "work", "goes with --topology")
    topology = resolve(args.topology or f"uniform:{args.ranks}", args.ranks)
    graph, part = graph_in_parts(args, topology)
    options = PlanOptions(row_bytes=max(args.widths[:-1]) * TYPES[args.datatype], seed=args.seed)
    with step(f"planning for {args.ranks} ranks"):
        shares = prepare(graph, args.ranks, topology, part=part, options=options)
    ranks = [rank_bytes(share, args) for share in shares]
    facts: dict[str, Any] = {"ranks": ranks, "left_out": dict(LEFT_OUT)}
    if args.topology is not None:
        facts["epoch"] = _epoch(shares, args)
    if args.json:
        print_json(facts)
    else:
        _print(args, shares, facts)
    return 0


def rank_bytes(share: Share, args: argparse.Namespace) -> dict[str, int]:
    """Bytes of one rank by name."""
    import torch

    from dgcl.transport.memory import predict_memory

    item, training = TYPES[args.datatype], not args.inference
    buffers = predict_memory(
        [share.program], args.widths[:-1], getattr(torch, args.datatype), training=training
    )
    local = share.local
    arrays = (value for value in vars(local).values() if hasattr(value, "nbytes"))
    parameters = num_parameters(args.model, args.widths) * item
    sizes = {
        "features": local.num_owned * args.widths[0] * item,
        "graph": sum(array.nbytes for array in arrays),
        "exchange tables": buffers.tables + buffers.control_page,
        "exchange buffers": buffers.pool,
        "kept for the backward" if training else "results": local.num_owned
        * item
        * kept_elements(args.model, args.widths, training=training),
        "parameters": parameters,
    }
    if training:
        sizes["gradients, optimiser"] = parameters * (1 + OPTIMIZERS[args.optimizer])
    return {**sizes, "total": sum(sizes.values())}


def num_parameters(model: str, widths: list[int]) -> int:
    """Elements of all matrices and biases."""
    per_result = {  # elements for each column of a layer's result
        "gcn": lambda width, out: width + 1,
        "sage": lambda width, out: 2 * width + 1,
        "gin": lambda width, out: width + out + 2,
    }[model]
    return sum(per_result(width, out) * out for width, out in pairwise(widths))


def kept_elements(model: str, widths: list[int], *, training: bool) -> int:
    """Elements for each owned row: of what autograd keeps of all layers, or of the widest layer's results."""
    hidden = 1 if model == "gin" else 0  # the result of its first product
    each = [width + (1 + hidden) * out for width, out in pairwise(widths)]
    # What means are divided by is kept where their inputs need gradients.
    counts = len(each) - 1 if model == "sage" else 0
    return sum(each) + counts if training else max(each)


def _work(text: str) -> list[float]:
    values = list_of(number(0))(text)
    if len(values) != 2:
        raise argparse.ArgumentTypeError(f"must be two numbers, for an edge and for a row (got {text!r})")
    return [value * 1e-9 for value in values]


def _find_work(args: argparse.Namespace, row_bytes: int) -> tuple[Work, str]:
    """What a layer costs a rank, as ``--work`` says or measured here; and where that is from."""
    from dgcl.frameworks.layer_work import measure_work
    from dgcl.replication.work import Work

    if args.work is not None:
        return Work(*args.work), "as given"
    with step("measuring what a layer costs here"):
        return measure_work(row_bytes), "measured on this host's CPU; for others give --work"


def _epoch(shares: list[Share], args: argparse.Namespace) -> dict[str, Any]:
    """Predicted seconds of a step over the whole graph, layer by layer, on the slowest rank."""
    from dgcl.planner.cost import predicted_seconds
    from dgcl.planner.fold import reverse_plan

    plan, item, widest = shares[0].plan, TYPES[args.datatype], max(args.widths)
    back = None if args.inference else reverse_plan(plan)
    work, source = _find_work(args, widest * item)
    layers = []
    for layer, (width, out) in enumerate(pairwise(args.widths)):
        exchange = predicted_seconds(plan.trees, plan.topology.arrays(), width * item)
        if back is not None and layer > 0:  # features need no gradient
            exchange += predicted_seconds(back.trees, back.topology.arrays(), width * item)
        products = {"gcn": width, "sage": 2 * width, "gin": width + out}[args.model] * out / widest**2
        sums = (1 if args.inference else 1 + (layer > 0)) * width / widest
        times = 1 if args.inference else 2 + (layer > 0)
        computing = max(
            sums * work.edge * share.local.num_edges + times * products * work.row * share.local.num_owned
            for share in shares
        )
        layers.append({"exchange_seconds": exchange, "compute_seconds": computing})
    return {
        "layers": layers,
        "work": {"edge_seconds": work.edge, "row_seconds": work.row, "source": source},
        "seconds": sum(sum(layer.values()) for layer in layers),
    }


def _print(args: argparse.Namespace, shares: list[Share], facts: dict[str, Any]) -> None:
    ranks = facts["ranks"]
    fullest = max(range(len(ranks)), key=lambda rank: ranks[rank]["total"])
    local = shares[fullest].local
    print_fields(
        [
            ("model", f"{args.model}: {MODELS[args.model]}, widths {','.join(map(str, args.widths))}"),
            (
                "rank",
                f"{fullest} is the fullest of {len(ranks)}: {local.num_owned} owned rows, {local.num_halo} halo rows",
            ),
        ]
    )
    print()
    mean = {name: sum(rank[name] for rank in ranks) / len(ranks) for name in ranks[0]}
    print_table(
        ["bytes of a rank", "fullest", "mean"],
        [[name, size(ranks[fullest][name]), size(mean[name])] for name in ranks[0]],
    )
    print_legend({"not counted": LEFT_OUT["bytes"]})
    if "epoch" not in facts:
        return
    epoch = facts["epoch"]
    print()
    rows = [
        [str(layer), seconds(each["exchange_seconds"]), seconds(each["compute_seconds"])]
        for layer, each in enumerate(epoch["layers"])
    ]
    print_table(["layer", "exchange", "compute"], rows)
    work = epoch["work"]
    print(
        f"\nepoch     {seconds(epoch['seconds'])} predicted, forward{'' if args.inference else ' and backward'}"
    )
    each = (
        f"{seconds(work['edge_seconds'])} an edge, {seconds(work['row_seconds'])} a row of the widest layer"
    )
    print(f"work      {each}, {work['source']}")
    print_legend({"not counted": LEFT_OUT["epoch"]})
