"""``--hops``: plans with replicas across machines, or lets "auto" compare that with the ordinary plan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dgcl.cli.arguments import Parser, at_least, byte_size, option, refuse, work
from dgcl.cli.errors import CliError
from dgcl.cli.output import step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dgcl.graph import Graph
    from dgcl.planner import PlanOptions
    from dgcl.planner.placement import Placement
    from dgcl.program.strategy import Arrangement
    from dgcl.relation.classes import ItemClasses
    from dgcl.replication.choice import Replication
    from dgcl.replication.work import Work
    from dgcl.topology import Topology


def add_replication(parser: Parser) -> None:
    """Declare the options."""
    option(
        parser,
        "--hops K",
        "layers that replicas across machines must last for: for --method replicate-across-machines, and for"
        " auto to choose between that and the ordinary plan",
        at_least(1),
    )
    option(parser, "--memory-limit SIZE", "bytes of a rank for --hops (default: no limit)", byte_size)
    option(
        parser,
        "--work E,R",
        "nanoseconds that a layer takes a rank for an edge and for a row, forward (default: measured here)",
        work,
    )


def check_replication(args: argparse.Namespace) -> bool:
    """Whether ``dgcl plan`` is asked about replicas; refuse what cannot be before anything long is done."""
    from dgcl.replication import METHOD

    if METHOD in (args.compare or ()):
        raise CliError(
            f"--compare cannot hold {METHOD}: it plans for another relation; give --hops and --method auto, which"
            " weighs both"
        )
    check_method(args, "--method", args.method)
    if args.hops is not None and args.graph is None:
        raise CliError("--hops goes with a graph: what is copied depends on the edges")
    return args.hops is not None


def check_method(args: argparse.Namespace, option: str, method: str, *, weighs_work: bool = False) -> None:
    """Refuse replicas that lack something, or what goes with replicas only; ``weighs_work``: --work is of use."""
    from dgcl.replication import METHOD

    if method == METHOD and args.hops is None:
        raise CliError(f"{option} {METHOD} needs --hops: the layers that replicas must last for")
    if args.hops is None:
        refuse(args, "memory-limit" if weighs_work else "memory-limit work", "goes with --hops")
    if args.hops is not None and method not in ("auto", METHOD):
        raise CliError(f"--hops goes with {option} auto or {METHOD} (got {method!r})")


def arrange_copies(
    args: argparse.Namespace,
    graph: Graph,
    part: NDArray[np.int32],
    classes: ItemClasses,
    topology: Topology,
    options: PlanOptions,
) -> tuple[Arrangement, str]:
    """The better of the two, or what was asked for; and why."""
    from dgcl.program.strategy import Problem

    replication, source = wanted_copies(args, args.method, topology)
    with step(f"planning {classes.relation.num_classes} classes on {topology.name}, and with replicas"):
        arrangement = replication.arrange(Problem(graph, part, topology, args.method, options))
    return arrangement, explained(arrangement.why, replication.work, source)


def wanted_copies(args: argparse.Namespace, method: str, topology: Topology) -> tuple[Replication, str]:
    """What the options say about replicas, with what a layer costs where that decides; and where that is from."""
    from dgcl.replication.choice import Replication
    from dgcl.replication.counts import machine_numbers

    weighed = args.hops is not None and method == "auto" and machine_numbers(topology).any()
    work, source = find_work(args, args.row_bytes) if weighed or args.work else (None, "")
    return Replication(args.hops, args.memory_limit, work=work), source


def find_work(args: argparse.Namespace, row_bytes: int) -> tuple[Work, str]:
    """What a layer costs a rank, as ``--work`` says or measured here; and where that is from."""
    from dgcl.frameworks.layer_work import measure_work
    from dgcl.replication.work import Work

    if args.work is not None:
        return Work(*args.work), "as given"
    with step("measuring what a layer costs here"):
        return measure_work(row_bytes), "measured on this host's CPU; for others give --work"


def explained(why: str, work: Work | None, source: str) -> str:
    """Why this plan, with the work that was reckoned with."""
    return f"{why} (work: {work}, {source})" if why and work else why


def place_parts(
    graph: Graph, part: NDArray[np.int32], placement: Placement
) -> tuple[NDArray[np.int32], ItemClasses]:
    """The parts where they were placed, and their classes."""
    from dgcl.relation.classes import halo_classes

    part = placement.device_of_part.astype(part.dtype)[part]
    return part, halo_classes(graph, part, placement.relation.world_size)
