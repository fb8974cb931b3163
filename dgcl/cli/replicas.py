"""``--hops``: plan with replicas across machines, or let "auto" weigh that against the ordinary plan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dgcl.cli.arguments import Parser, at_least, byte_size, list_of, number
from dgcl.cli.errors import CliError
from dgcl.cli.output import step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.planner import PlanOptions
    from dgcl.planner.placement import Placement
    from dgcl.relation import VertexClasses
    from dgcl.replication.choice import Arrangement
    from dgcl.topology import Topology


def add_replication(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--hops",
        metavar="K",
        type=at_least(1),
        help="layers that replicas across machines must last for: for --method replicate-across-machines, and for"
        " auto to choose between that and the ordinary plan",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=byte_size,
        help="bytes of a rank for --hops (default: no limit)",
    )
    parser.add_argument(
        "--work",
        metavar="E,R",
        type=list_of(number(0)),
        help="nanoseconds that a layer takes a rank for an edge and for a row, forward (default: measured here)",
    )


def check_replication(args: argparse.Namespace) -> bool:
    """Whether replicas are asked about; refuse what cannot be before anything long is done."""
    from dgcl.replication import METHOD

    if METHOD in (args.compare or ()):
        raise CliError(
            f"--compare cannot hold {METHOD}: it plans for another relation; give --hops and --method auto, which"
            " weighs both"
        )
    if args.method == METHOD and args.hops is None:
        raise CliError(f"--method {METHOD} needs --hops: the layers that replicas must last for")
    for name, value in (("--memory-limit", args.memory_limit), ("--work", args.work)):
        if value is not None and args.hops is None:
            raise CliError(f"{name} goes with --hops")
    if args.hops is None:
        return False
    if args.graph is None:
        raise CliError("--hops goes with a graph: what is copied depends on the edges")
    if args.method not in ("auto", METHOD):
        raise CliError(f"--hops goes with --method auto or {METHOD} (got {args.method!r})")
    if args.work is not None and len(args.work) != 2:
        raise CliError(f"--work must be two numbers, for an edge and for a row (got {len(args.work)})")
    return True


def arrange_copies(
    args: argparse.Namespace,
    graph: Graph,
    part: NDArray[np.int32],
    classes: VertexClasses,
    topology: Topology,
    options: PlanOptions,
) -> tuple[Arrangement, str]:
    """The better of the two, or what was asked for; and why."""
    from dgcl.replication.choice import Replication, arrange
    from dgcl.replication.counts import machine_numbers
    from dgcl.replication.work import Work, measure_work

    if args.work is not None:
        work, source = Work(*(nanoseconds * 1e-9 for nanoseconds in args.work)), "as given"
    elif args.method == "auto" and machine_numbers(topology).any():
        with step("measuring what a layer costs"):
            work, source = (
                measure_work(options.row_bytes),
                "measured on this host's CPU; for others give --work",
            )
    else:
        work, source = None, ""
    wanted = Replication(args.hops, args.memory_limit, work=work)
    with step(f"planning {classes.relation.num_classes} classes on {topology.name}, and with replicas"):
        made = arrange(graph, part, classes, topology, args.method, options, wanted)
    return made, f"{made.why} (work: {work}, {source})" if made.why and work else made.why


def place_parts(
    graph: Graph, part: NDArray[np.int32], found: Placement
) -> tuple[NDArray[np.int32], VertexClasses]:
    """The parts where they were placed, and their classes."""
    from dgcl.relation import build_classes

    part = found.device_of_part.astype(part.dtype)[part]
    return part, build_classes(graph, part, found.relation.world_size)
