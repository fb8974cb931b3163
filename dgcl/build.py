"""``build_comm_info``: from a graph to a communicator on every rank.

Rank 0 has the graph, partitions and plans (:func:`dgcl.prepare.shares.prepare_inputs`). Every rank gets its edges and
items, makes its share, and all connect to each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from dgcl.advisor.spelling import Description
from dgcl.grid.choice import GridChoice
from dgcl.grid.grid import Grid, as_grid
from dgcl.grid.plans import EdgeSeconds
from dgcl.grid.strategy import GridPlacement
from dgcl.options import (
    EdgeOptions,
    GridOptions,
    PartitionOptions,
    ReplicaOptions,
    Settings,
    is_auto,
    settle,
)
from dgcl.planner import PlanOptions
from dgcl.prepare.part_files import ANEW, load_share
from dgcl.prepare.share import RankInputs, Share, share_of
from dgcl.prepare.shares import prepare, prepare_inputs
from dgcl.program.strategy import Strategy
from dgcl.ranks.answers import from_rank_0
from dgcl.ranks.control import Control
from dgcl.ranks.machines import RankPlace, places_of_ranks, topology_of_job
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree
from dgcl.replication.choice import Replication
from dgcl.replication.counts import spans_machines
from dgcl.replication.strategy import Replicas
from dgcl.topology import Topology
from dgcl.topology.checks import shown
from dgcl.topology.free_memory import available_memory
from dgcl.transport import kernels
from dgcl.transport.cuda import open_devices
from dgcl.workers.strategy import EdgePlacement

if TYPE_CHECKING:
    import torch

    from dgcl.communicator import Communicator
    from dgcl.transport.cuda.gpu import Device

__all__ = [
    "build_comm_info",
    "connect",
    "connect_shares",
    "load_comm_info",
    "prepare",
]

AnyCommunicator = TypeVar("AnyCommunicator", bound="Communicator")


@set_up_call
def build_comm_info(
    graph: Any = None,
    topology: str | Topology = "auto",
    *,
    part: Any = None,
    partition: str | PartitionOptions = "metis",
    method: str = "auto",
    edges: str | EdgeOptions = "head",
    grid: str | tuple[int, int, int] | GridOptions | None = None,
    plan: PlanOptions | None = None,
    replicas: ReplicaOptions | None = None,
    strategy: str | Description | None = None,
    seed: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    timeout: float = 300.0,
    channel: str = "auto",
    device: str | torch.device = "cpu",
) -> Communicator:
    """Partition the graph, plan the exchange, and connect the ranks. Collective; call :func:`dgcl.init` first.

    Args:
        graph: On rank 0 (other ranks may pass None): a DGLGraph, a PyG ``Data`` or ``edge_index``, networkx,
            a scipy sparse matrix, ``(indptr, indices)``, a file, or a :class:`dgcl.graph.Graph`. An edge u->v
            means that v reads u.
        topology: The machine: "auto" (detected, and logged at INFO), a preset's name, a JSON file, or a
            :class:`~dgcl.topology.Topology`.
        part: ``(N,)`` the owner of every vertex, instead of partitioning.
        partition: "metis", "random", "range" or "auto"; or :class:`dgcl.PartitionOptions`.
        method: The planner, see ``dgcl plan --help``. "replicate-across-machines" copies vertices instead of
            sending rows between machines (:mod:`dgcl.replication`); "auto" does so where the hops of ``replicas`` are
            given, it is predicted to be faster, and it fits. The reason is logged and in ``comm.describe()``.
        edges: Which rank sums which edge: "head" (the default), "tail", "cover" or "auto", or
            :class:`dgcl.EdgeOptions`. With any but "head" aggregations go through :meth:`Communicator.aggregator`.
        grid: (parts, depth, slices): slices of rows are summed where :class:`dgcl.grid.grid.Grid` says; "1d", "1.5d",
            "2d", "3d", "auto", or :class:`dgcl.GridOptions`. ``part`` names ranks, as without.
        plan: Options of planning: :class:`dgcl.PlanOptions` (bytes of a row, seconds, the gap to stop at).
        replicas: Options of replicas: :class:`dgcl.ReplicaOptions`.
        strategy: One of "halo", "tail", "cover", "cover:machine", "grid:R,K,S", "replicas:K", in the place of
            ``edges``, ``grid`` and ``replicas``. "windows:W", "in-place" and "offload:N" are built as "halo": they
            are called on the communicator.
        seed: For the partition and the planner; None: that of ``plan``.
        cache: A folder of rank 0 where partition and plan are kept for the next job that asks for the same
            (:mod:`dgcl.prepare.cache`). An entry that is damaged, or cannot be written, is a warning, no more. With
            replicas the ordinary plan and that of copies are kept apart, and the choice between them is not kept:
            what a layer costs and what fits is found out in every job.
        timeout: Seconds that a rank waits for another inside a call before it gives up.
        channel: How rows travel between ranks: "auto" (through memory where all ranks share it, else by collectives),
            "memory", or "collective", by collectives of ``torch.distributed``; see ``comm.describe()``.
        device: Where the rows are that this rank exchanges: "cpu", or this rank's GPU, as "cuda" (torch's current
            one, if one was set, else that of ``LOCAL_RANK``) or "cuda:1"; all ranks on GPUs, or none
            (:mod:`dgcl.transport.cuda`). GPUs are experimental.

    Returns:
        This rank's communicator, which is from now on the current one of this thread.

    Raises:
        ValueError, TypeError: Bad arguments on rank 0, or bad options on any; raised on every rank.
        MemoryError: Replicas that were asked for do not fit; raised on every rank.
        OSError: The graph's file is missing or cannot be read; raised on every rank.
        CommError: The ranks share no memory, or one of them is gone.
    """
    from dgcl.communicator import Communicator
    from dgcl.ranks.context import context

    control = context.require_control()
    check_timeout(timeout)
    settings = _settled(control.world_size, plan, partition, replicas, edges, seed, grid, strategy)
    opened = open_devices(control, device)
    places = places_of_ranks(control, "" if opened is None else f"GPU-{UUID(opened.uuid)}")
    topology = topology_of_job(control, topology, places)
    layout = _strategy(control, settings, topology, method, places, opened)

    def inputs() -> list[RankInputs]:
        if graph is None:
            raise ValueError("graph must be given on rank 0 (got None)")
        assert isinstance(settings, Settings)
        return prepare_inputs(
            graph,
            control.world_size,
            topology,
            part=part,
            partition=settings.partition.method,
            method=method,
            options=settings.plan,
            place=settings.partition.place,
            balance=settings.partition.balance,
            cache=cache,
            strategy=layout,
            block=layout.block if isinstance(layout, GridPlacement) else 1,
        )

    return connect(inputs, Communicator, timeout, channel, opened)


def check_timeout(timeout: Any) -> None:
    """Raise unless a timeout is a positive number."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) > 0:
        raise ValueError(f"timeout must be a positive number of seconds (got {shown(timeout)})")


def _settled(world_size: int, *arguments: Any) -> Settings | Exception:
    """All options together, or what is wrong with them, of which every rank is to hear."""
    try:
        settings = settle(*arguments)
        if settings.grid is not None and not is_auto(settings.grid.sizes):
            grid = as_grid(settings.grid.sizes, world_size)
            settings = replace(settings, grid=replace(settings.grid, sizes=grid))
        if settings.strategy is not None:
            settings.strategy.layout(world_size).check()
        return settings
    except (TypeError, ValueError) as error:
        return error


def _strategy(
    control: Control,
    settings: Settings | Exception,
    topology: str | Topology,
    method: str,
    places: Sequence[RankPlace],
    device: Device | None,
) -> Strategy:
    """How to lay out the exchange, as rank 0 asks for it; with what each rank can give. Collective.

    Raises:
        ValueError, TypeError: What is wrong with a rank's settings; or ranks ask for different ones; on every rank.
    """
    from dgcl.frameworks.layer_work import measure_together

    request = settings if isinstance(settings, Exception) else _requested(settings)
    reports = control.exchange((_free_memory(places, control.rank, device), request))
    _agree_on_edges([theirs for _, theirs in reports])
    assert isinstance(settings, Settings)
    if settings.strategy is not None:
        layout = settings.strategy.layout(control.world_size)
        if isinstance(layout, Replicas):
            return replace(layout, free=tuple(bytes_free for bytes_free, _ in reports))
        return layout
    weighing = control.rank == 0 and is_auto(method) and spans_machines(topology, control.world_size)
    row_bytes = slice_bytes = None  # nothing needs to be measured
    if control.rank == 0:
        choosing_grid = settings.grid is not None and is_auto(settings.grid.sizes)
        chosen = "auto" in (settings.edges.placement, settings.partition.method)
        if (weighing and settings.replicas.hops is not None) or chosen:
            row_bytes = settings.plan.row_bytes
        if choosing_grid:
            row_bytes = settings.plan.row_bytes
            slice_bytes = -(-row_bytes // control.world_size)
    where = "cpu" if device is None else device.tensors.device
    work = measure_together(control, row_bytes, where)
    narrow = measure_together(control, slice_bytes, where)
    placement, edge_seconds = settings.edges, 0.0 if work is None else work.edge
    whole = EdgePlacement(placement.placement, placement.imbalance, placement.per_machine, edge_seconds)
    if settings.grid is not None and is_auto(settings.grid.sizes):
        measured = EdgeSeconds()
        if row_bytes is not None and slice_bytes is not None and work is not None and narrow is not None:
            measured = EdgeSeconds.through((row_bytes, work.edge), (slice_bytes, narrow.edge))
        limit = cast("int | None", settings.grid.memory_limit)
        return GridChoice(whole, limit, measured)
    rows = Grid(control.world_size)  # of whole rows, which is what there is without a grid
    if settings.grid not in (None, GridOptions(rows)):
        assert settings.grid is not None
        assert isinstance(settings.grid.sizes, Grid)
        return GridPlacement(settings.grid.sizes)
    if placement.placement != "head":
        return whole
    free = tuple(bytes_free for bytes_free, _ in reports)
    return Replication(settings.replicas.hops, cast("int | None", settings.replicas.memory_limit), free, work)


_Request = tuple[EdgeOptions, GridOptions | None, Description | None]


def _requested(settings: Settings) -> _Request:
    return settings.edges, settings.grid, settings.strategy


def _agree_on_edges(requests: Sequence[_Request | Exception]) -> None:
    """Raise, on every rank, where ranks ask for different placements of edges, or one of them for what cannot be.

    Raises:
        ValueError, TypeError: Naming two ranks; or what is wrong with a rank's options, the first one's that has such.
    """
    valid: list[_Request] = []
    for options in requests:
        if isinstance(options, Exception):
            raise type(options)(*options.args)  # ranks that are threads must not share one, and its traceback
        valid.append(options)
    for rank, options in enumerate(valid):
        for name, ours, theirs in zip(("edges", "grid", "strategy"), valid[0], options, strict=True):
            if ours != theirs:
                raise ValueError(
                    f"{name} must be the same on every rank: rank 0 asks for {ours}, rank {rank} for {theirs}"
                )


@set_up_call
def load_comm_info(
    parts: str | os.PathLike[str],
    *,
    grid: str | tuple[int, int, int] | None = None,
    timeout: float = 300.0,
    channel: str = "auto",
    device: str | torch.device = "cpu",
) -> Communicator:
    """Connect ranks whose parts were prepared by ``dgcl partition --out DIR/``. Collective.

    Every rank reads its own file, so the folder must be on every machine (all of it, or the plan and the files of
    the ranks there).

    Args:
        parts: The folder.
        grid: The grid that the parts must be of; None: whichever they are of.
        timeout, channel, device: As in :func:`dgcl.build_comm_info`.

    Returns:
        This rank's communicator, which is from now on the current one of this thread.

    Raises:
        ValueError: A file is missing, damaged, or of another set than the others, or there is no such device; on every
            rank.
        CommError: One of the ranks is gone.
    """
    from dgcl.ranks.context import context

    control = context.require_control()
    check_timeout(timeout)
    opened = open_devices(control, device)
    problem: Exception | None = None
    share, token = None, ""
    try:
        share, token = load_share(parts, control.rank, control.world_size, grid)
    except ValueError as error:
        problem = error
    except OSError as error:
        problem = ValueError(f"parts: {error.filename or parts} cannot be read: {error.strerror or error}")
    agree(control, problem)
    tokens = control.exchange(token)
    if len(set(tokens)) > 1:
        odd = next(rank for rank, other in enumerate(tokens) if other != tokens[0])
        raise ValueError(f"parts: files of rank 0 and rank {odd} were not written together; write them anew")
    from dgcl.communicator import Communicator
    from dgcl.transport.loaded_rows import check_rows

    assert share is not None
    programs = {exchange.name: exchange.program for exchange in share.exchanges}
    comm = connect_shares(share, Communicator, timeout, channel, opened)
    try:
        check_rows(comm.transport, programs, control, comm.device)
    except ValueError as error:
        comm.close()
        raise ValueError(f"parts: {error}; {ANEW}") from error
    return comm


def _free_memory(places: Sequence[RankPlace], rank: int, device: Device | None) -> int:
    """Bytes that a rank may still take where it computes.

    Ranks that share a host, or a GPU, share what is free.
    """
    sharing = sum((place.machine, place.gpu) == (places[rank].machine, places[rank].gpu) for place in places)
    if device is not None and device.tensors.device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device.tensors.device)[0]) // sharing
    return available_memory() // sharing


@set_up_call
def connect(
    inputs: Callable[[], Sequence[RankInputs]],
    kind: type[AnyCommunicator],
    timeout: float,
    channel: str = "auto",
    device: Device | None = None,
) -> AnyCommunicator:
    """Let rank 0 hand out what each rank makes its share from, and connect the ranks. Collective.

    Args:
        inputs: Called on rank 0 alone; what it raises is raised on every rank.
        kind: The class of communicator to make.
        timeout, channel: As in :func:`build_comm_info`.
        device: This rank's, opened.

    Returns:
        This rank's communicator, the current one from now on.
    """
    from dgcl.ranks.context import context

    control = context.require_control()
    mine = from_rank_0(control, inputs, kernels.prepare)
    problem = None
    try:
        share = share_of(mine)
    except Exception as error:  # every rank must hear of it, whatever it is
        problem = error
    agree(control, problem)
    return connect_shares(share, kind, timeout, channel, device)


@set_up_call
def connect_shares(
    share: Share,
    kind: type[AnyCommunicator],
    timeout: float,
    channel: str = "auto",
    device: Device | None = None,
) -> AnyCommunicator:
    """Connect ranks that have their shares already. Collective; as :func:`connect`."""
    from dgcl.ranks.context import add_communicator, context
    from dgcl.transport.connect import connect_transport

    control = context.require_control()
    kernels.prepare()  # before the ranks meet again: compiling never counts against a deadline of a call
    if share.edges != "head" and device is None:
        from dgcl.aggregation import edges

        edges.prepare()
    programs = {exchange.name: exchange.program for exchange in share.exchanges}
    comm = kind(
        share.exchanges,
        share.local,
        share.sizes,
        control,
        connect_transport(programs, control, timeout, channel, device),
        timeout=timeout,
        device=None if device is None else device.tensors.device,
        choice=share.choice,
        edges=share.edges,
        grid=share.grid,
    )
    add_communicator(comm)
    return comm
