"""``build_comm_info``: from a graph to a communicator on every rank.

Rank 0 has the graph and does the thinking, once: partition, relation, plan, proof, programs, local graphs
(:func:`prepare`, a pure function that needs no ranks). The others receive their share and connect to each
other's memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from dgcl.cache import PlanCache, cache_key
from dgcl.control import Control
from dgcl.device import open_devices
from dgcl.graph import Graph, as_graph
from dgcl.local_graph import LocalGraph, build_local_graphs
from dgcl.machines import find_topology, host_of_ranks, places_of_ranks, several_machines
from dgcl.partition import partition_graph
from dgcl.partition.check import check_part
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.program import Program, compile_programs
from dgcl.program.verify import verify_programs
from dgcl.relation import VertexClasses, build_classes
from dgcl.topology import Topology, resolve_topology

if TYPE_CHECKING:
    import torch

    from dgcl.communicator import Communicator
    from dgcl.device.gpu import Device

AnyCommunicator = TypeVar("AnyCommunicator", bound="Communicator")

_log = logging.getLogger("dgcl")


@dataclass(frozen=True, eq=False)
class Share:
    """What one rank needs to take part.

    Attributes:
        program: What it does in every call.
        local: Its edges and degrees.
        plan: The whole plan.
        sizes: (vertices, edges) of the whole graph.
    """

    program: Program
    local: LocalGraph
    plan: Plan
    sizes: tuple[int, int]


def prepare(
    graph: Any,
    world_size: int,
    topology: str | Topology = "auto",
    *,
    part: Any = None,
    partition: str = "metis",
    method: str = "auto",
    options: PlanOptions | None = None,
    place: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> list[Share]:
    """Partition, plan, prove and compile; everything that needs the graph and no ranks.

    Arguments and errors as in :func:`build_comm_info`.
    """
    options = options or PlanOptions()
    clock = _Clock()
    checked = as_graph(graph)
    if isinstance(topology, str) and topology == "auto":
        machine = host_of_ranks(world_size)
    else:
        machine = resolve_topology(topology, world_size)
    given = None if part is None else check_part(part, checked.num_nodes, world_size, allow_empty=True)
    clock.lap("graph and topology")
    entry = found = None
    if cache is not None:
        key = cache_key(checked, world_size, machine, given, partition, method, options)
        entry = PlanCache(cache, {**key, "place": True} if place else key)
        found = _cached(entry, checked, world_size)
        clock.lap("cache")
    if found is None:
        owners = given
        if owners is None:
            owners = partition_graph(
                checked, world_size, topology=machine, method=partition, seed=options.seed
            )
        clock.lap("partition")
        classes = build_classes(checked, owners, world_size)
        clock.lap("relation")
        if place:
            owners, classes = _placed(checked, owners, classes, machine, options)
            clock.lap("placement")
        plan = make_plan(classes.relation, machine, method, options)
        clock.lap("plan")
    else:
        owners, classes, plan = found
    programs = compile_programs(plan, classes, owners)
    verify_programs(programs, plan, classes, owners)
    clock.lap("programs and proof")
    if entry is not None and found is None:
        entry.store(owners, plan)
        clock.lap("storing")
    locals_ = build_local_graphs(checked, [(program.owned_ids, program.halo_ids) for program in programs])
    clock.lap("local graphs")
    _log.info(
        "%d vertices, %d edges on %d ranks of %s: %s; predicted %.3g s per exchange of %d-byte rows (%.1f%% "
        "above the bound); %s",
        checked.num_nodes,
        checked.num_edges,
        world_size,
        machine.name,
        f"plan {plan.method!r} with {plan.num_stages} stage(s)",
        plan.predicted_seconds,
        plan.row_bytes,
        100 * plan.gap,
        clock,
    )
    sizes = (checked.num_nodes, checked.num_edges)
    return [Share(program, local, plan, sizes) for program, local in zip(programs, locals_, strict=True)]


def _placed(
    graph: Graph, owners: NDArray[np.int32], classes: VertexClasses, machine: Topology, options: PlanOptions
) -> tuple[NDArray[np.int32], VertexClasses]:
    """Put every part on the device where plans are fastest; say what that gains."""
    from dgcl.planner.placement import place

    found = place(classes.relation, machine, options)
    if not found.moves:
        _log.info("placement: every part stays where it is, no placement found is faster")
        return owners, classes
    _log.info(
        "placement: part p goes on rank %s[p], from %.3g s per exchange to %.3g s",
        found.device_of_part.tolist(),
        found.seconds_before,
        found.seconds_after,
    )
    owners = found.device_of_part.astype(owners.dtype)[owners]
    return owners, build_classes(graph, owners, machine.num_devices)


def _cached(
    entry: PlanCache, graph: Graph, world_size: int
) -> tuple[NDArray[np.int32], VertexClasses, Plan] | None:
    """(parts, classes, plan) of a cache entry that holds what it should."""
    loaded = entry.load(graph.num_nodes, world_size)
    if loaded is None:
        return None
    owners, plan = loaded
    classes = build_classes(graph, owners, world_size)
    mine, stored = classes.relation, plan.relation
    if not all(
        np.array_equal(getattr(mine, name), getattr(stored, name)) for name in ("source", "dests", "count")
    ):
        entry.refuse(ValueError("its relation is not that of the graph and its parts"))
        return None
    _log.info("partition and plan come from the cache: %s", entry.path)
    return owners, classes, plan


def build_comm_info(
    graph: Any = None,
    topology: str | Topology = "auto",
    *,
    part: Any = None,
    partition: str = "metis",
    method: str = "auto",
    row_bytes: int = 512,
    seed: int = 0,
    time_limit: float | None = None,
    timeout: float = 300.0,
    place: bool = False,
    cache: str | os.PathLike[str] | None = None,
    channel: str = "auto",
    device: str | torch.device = "cpu",
) -> Communicator:
    """Partition the graph, plan the exchange, and connect the ranks. Collective; call :func:`dgcl.init`
    first.

    Args:
        graph: On rank 0 (other ranks may pass None): a DGLGraph, a PyG ``Data`` or ``edge_index``, networkx,
            a scipy sparse matrix, ``(indptr, indices)``, a file, or a :class:`dgcl.graph.Graph`. An edge u->v
            means that v reads u.
        topology: The machine: "auto" (found out, and told at INFO), a preset's name, a JSON file, or a
            :class:`~dgcl.topology.Topology`.
        part: ``(N,)`` the owner of every vertex, instead of partitioning.
        partition: "metis", "random" or "range".
        method: The planner, see ``dgcl plan --help``.
        row_bytes: Bytes of a typical row, for the plan's predictions and its choice of stages.
        seed: For the partition and the planner.
        time_limit: Seconds that planning may take.
        timeout: Seconds that a rank waits for another inside a call before it gives up.
        place: Renumber the parts first, so that each runs where the plan is fastest; the gain is told at
            INFO. A ``part`` that is given is renumbered too: see ``comm.owned_ids``.
        cache: A folder of rank 0 where partition and plan are kept for the next job that asks for the same
            (:mod:`dgcl.cache`). An entry that is damaged, or cannot be written, is a warning, no more.
        channel: How rows travel between ranks: "auto" (through memory where two ranks share it, else through
            the network), "memory" or "network" for all; see ``comm.describe()``.
        device: Where the rows are that this rank exchanges: "cpu", or this rank's GPU, as "cuda" (torch's current
            one) or "cuda:1"; all ranks on GPUs of one machine, or none (:mod:`dgcl.device`).

    Returns:
        This rank's communicator, which is from now on the current one of this thread.

    Raises:
        ValueError, TypeError: Bad arguments on rank 0; raised on every rank.
        CommError: The ranks share no memory, or one of them is gone.
    """
    from dgcl.communicator import Communicator
    from dgcl.context import context

    control = context.require_control()
    world_size = control.world_size
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds (got {timeout!r})")
    opened = open_devices(control, device)
    topology = _several_machines(control, topology, opened)

    def shares() -> list[Share]:
        if graph is None:
            raise ValueError("graph must be given on rank 0 (got None)")
        options = PlanOptions(row_bytes=row_bytes, seed=seed, time_limit=time_limit)
        return prepare(
            graph,
            world_size,
            topology,
            part=part,
            partition=partition,
            method=method,
            options=options,
            place=place,
            cache=cache,
        )

    return connect(shares, Communicator, timeout, channel, opened)


def _several_machines(
    control: Control, topology: str | Topology, device: Device | None = None
) -> str | Topology:
    """What "auto" means where ranks run on more than one machine, or on GPUs; otherwise the topology as it is.

    Collective: every rank says where it runs, and what topology is asked for is rank 0's word.
    """
    places = places_of_ranks(control, "" if device is None else f"GPU-{UUID(device.uuid)}")
    if (several_machines(places) or places[0].gpu) and control.broadcast(
        isinstance(topology, str) and topology == "auto"
    ):
        gpus = [place.gpu for place in places]
        if gpus[0] and len(set(gpus)) < len(gpus):
            _log.info("ranks share a GPU: all links count as equally fast")
            return f"uniform:{control.world_size}"
        return find_topology(control, places).topology
    return topology


def connect(
    shares: Callable[[], Sequence[Share]],
    kind: type[AnyCommunicator],
    timeout: float,
    channel: str = "auto",
    device: Device | None = None,
) -> AnyCommunicator:
    """Let rank 0 make every rank's share, hand them out, and connect the ranks. Collective.

    Args:
        shares: Called on rank 0 alone; what it raises is raised on every rank.
        kind: The class of communicator to make.
        timeout, channel: As in :func:`build_comm_info`.
        device: This rank's, opened.

    Returns:
        This rank's communicator, the current one from now on.
    """
    from dgcl.context import context

    control = context.require_control()
    answers: list[Share | Exception] | None = None
    if control.rank == 0:
        try:
            answers = list(shares())
        except Exception as error:  # every rank must hear of it, whatever it is
            _tell_all(control, error)
            raise
        except BaseException as error:  # Ctrl-C: the others wait for their shares
            control.leave(f"was stopped by {type(error).__name__}")
            raise
    share = control.scatter(answers)
    if isinstance(share, Exception):
        raise share
    assert isinstance(share, Share)
    return connect_shares(share, kind, timeout, channel, device)


def connect_shares(
    share: Share,
    kind: type[AnyCommunicator],
    timeout: float,
    channel: str = "auto",
    device: Device | None = None,
) -> AnyCommunicator:
    """Connect ranks that have their shares already. Collective; as :func:`connect`."""
    from dgcl.context import context

    control = context.require_control()
    comm = kind(share.program, share.plan, share.local, share.sizes, control, timeout, channel, device)
    context.communicator = comm
    context.opened.add(comm)
    return comm


def _tell_all(control: Control, error: Exception) -> None:
    """Give every rank an error of the same kind; only plain kinds travel between processes."""
    kind = next(
        k
        for k in (TypeError, ValueError, MemoryError, OSError, RuntimeError)
        if isinstance(error, k) or k is RuntimeError
    )
    control.scatter([kind(f"{error} (on rank 0)")] * control.world_size)


class _Clock:
    """Seconds per step, for one line in the log."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._laps: list[str] = []

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps.append(f"{name} {now - self._last:.2f} s")
        self._last = now

    def __str__(self) -> str:
        return ", ".join(self._laps)
