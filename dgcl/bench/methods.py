"""All ways to exchange rows by name: the planners, the baselines, and one function that makes any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dgcl
from dgcl.bench.baselines import GlooTransport, PaddedTransport, SwapTransport
from dgcl.bench.folds import FOLDS, DirectFold
from dgcl.bench.problems import Problem
from dgcl.bench.replication import connect_replicated
from dgcl.bench.transports import Baseline as BaselineTransport
from dgcl.build import Share, connect, prepare
from dgcl.graph import as_graph
from dgcl.partition import check_part, partition_graph
from dgcl.planner import PlanOptions
from dgcl.planner.methods import METHODS as PLANNERS
from dgcl.ranks.context import context
from dgcl.replication import METHOD
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.checks import check_choice

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


@dataclass(frozen=True)
class Method:
    """A way to exchange rows that is no plan.

    Attributes:
        plan: The planner whose numbering of the halo it uses.
        make: Makes the transport of a communicator with that plan; None for replication, which has none.
        summary: What it is, in one line.
    """

    plan: str
    make: Callable[[Communicator], BaselineTransport] | None
    summary: str


BASELINES: Mapping[str, Method] = MappingProxyType(
    {
        "gloo": Method("direct", GlooTransport, "torch.distributed all_to_all_single of packed rows"),
        "swap": Method("chain", SwapTransport, "all rows through host memory, then from reader to reader"),
        "padded": Method("direct", PaddedTransport, "an allgather of parts padded to the largest"),
        "replication": Method("direct", None, "copies of all that K layers read; nothing is exchanged"),
    }
)
"""Ways to exchange rows that are no plans, by name."""


METHODS = (*PLANNERS, METHOD, *BASELINES)
"""All that ``method`` of :func:`build_comm_info` may be."""


def check_method(method: str, fold: str = "sum") -> None:
    """Raise unless there is such a method, and such a fold.

    Raises:
        ValueError: With those that there are.
    """
    check_choice(method, "method", METHODS)
    check_choice(fold, "fold", FOLDS)
    if fold != "sum" and method == "replication":
        raise ValueError(
            f"fold {fold!r} does not go with method 'replication', which folds nothing; leave fold out"
        )


def build_comm_info(
    graph: Any = None,
    topology: str | Topology = "auto",
    *,
    part: Any = None,
    partition: str = "metis",
    method: str = "auto",
    fold: str = "sum",
    layers: int = 2,
    row_bytes: int = 512,
    seed: int = 0,
    time_limit: float | None = None,
    timeout: float = 300.0,
) -> Communicator:
    """:func:`dgcl.build_comm_info` with the baselines among its methods: the communicator that it returns
    trains models exactly as any other. Collective.

    Args:
        graph, topology, part, partition, row_bytes, seed, time_limit, timeout: As there.
        method: A planner, "replicate-across-machines", or one of :data:`BASELINES`.
        fold: One of :data:`~dgcl.bench.folds.FOLDS`.
        layers: How many exchanges one after the other replicas must last for: the layers, and one more where
            degrees are exchanged, as PyG's GCN does. "auto" takes the ordinary plan here.

    Raises:
        ValueError, TypeError, CommError: As there; and for a method that cannot work here.
    """
    check_method(method, fold)
    baseline = BASELINES.get(method)
    if baseline is None:
        comm = dgcl.build_comm_info(
            graph,
            topology,
            part=part,
            partition=partition,
            method=method,
            plan=PlanOptions(row_bytes=row_bytes, seed=seed, time_limit=time_limit),
            replicas=dgcl.ReplicaOptions(hops=layers if method == METHOD else None),
            timeout=timeout,
        )
    else:
        control = context.require_control()

        def split() -> Problem:
            return _split(graph, control.world_size, topology, part, partition, seed)

        if baseline.make is None:
            return connect_replicated(split, layers, timeout)
        options = PlanOptions(row_bytes=row_bytes)
        comm = connect(lambda: _share_out(split(), baseline.plan, options), dgcl.Communicator, timeout)
        comm.use_transport(baseline.make(comm))
    if fold != "sum":
        comm.use_transport(DirectFold(comm, fold))
    return comm


def _split(
    graph: Any, world_size: int, topology: str | Topology, part: Any, partition: str, seed: int
) -> Problem:
    """The graph in parts, as :func:`dgcl.build.prepare` makes them."""
    if graph is None:
        raise ValueError("graph must be given on rank 0 (got None)")
    checked = as_graph(graph)
    if part is not None:
        owners = check_part(part, checked.num_nodes, world_size, allow_empty=True)
    else:
        # A host has no levels to partition along, so it need not be measured.
        flat = isinstance(topology, str) and topology == "auto"
        machine = resolve_topology("uniform" if flat else topology, world_size)
        owners = partition_graph(checked, world_size, topology=machine, method=partition, seed=seed)
    return Problem("graph", checked, owners, world_size)


def _share_out(problem: Problem, method: str, options: PlanOptions) -> list[Share]:
    """Programs of a plan on a machine with all links: what a baseline runs on."""
    machine = f"uniform{problem.world_size}"
    return prepare(
        problem.graph, problem.world_size, machine, part=problem.part, method=method, options=options
    )
