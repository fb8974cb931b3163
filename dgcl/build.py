"""Builds communicators on all ranks: from rank 0's graph (``build_comm_info``), or from files (``load_comm_info``).

Rank 0 has the graph, partitions and plans (:func:`dgcl.prepare.shares.prepare_inputs`). Every rank gets its edges and
items, makes its share, and all connect to each other.
Called by users, `api`, `local_build` and `dgcl/distributed/dispatch`. Free to change while planned bytes are what is
moved, and mistakes on one rank are raised on all (`tests/dgcl/test_build.py`); what files give is what rank 0 would
give (`tests/dgcl/prepare/test_part_files.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from dgcl.advisor.auto_strategy import Advised
from dgcl.advisor.model_costs import Model
from dgcl.advisor.spelling import Description
from dgcl.communicator import Communicator
from dgcl.options import PartitionOptions, Settings, settle
from dgcl.planner import PlanOptions
from dgcl.prepare.part_files import compare_rows, load_share
from dgcl.prepare.share import RankInputs, Share, share_of
from dgcl.prepare.shares import prepare_inputs
from dgcl.program.strategy import Strategy
from dgcl.ranks.answers import from_rank_0
from dgcl.ranks.context import add_communicator, context
from dgcl.ranks.control import Control
from dgcl.ranks.machines import places_of_ranks, topology_of_job
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree
from dgcl.topology import Topology
from dgcl.topology.checks import shown
from dgcl.transport import precompile
from dgcl.transport.cuda import open_devices
from dgcl.transport.rounding import Rounding, check_wire

if TYPE_CHECKING:
    import torch

    from dgcl.transport.cuda.gpu import Device


@set_up_call
def build_comm_info(
    graph: Any = None,
    topology: str | Topology = "auto",
    *,
    part: Any = None,
    partition: str | PartitionOptions = "auto",
    method: str = "auto",
    strategy: str | Description | Strategy = "halo",
    model: str | Model | torch.nn.Module | None = None,
    memory_limit: int | str | None = None,
    plan: PlanOptions | None = None,
    cache: str | os.PathLike[str] | None = None,
    timeout: float = 300.0,
    channel: str = "auto",
    device: str | torch.device = "cpu",
    wire: torch.dtype | None = None,
) -> Communicator:
    """Partition the graph, plan the exchange, and connect the ranks. Collective; call :func:`dgcl.init` first.

    Args:
        graph: On rank 0 (other ranks may pass None): a DGLGraph, a PyG ``Data`` or ``edge_index``, networkx,
            a scipy sparse matrix, ``(indptr, indices)``, a file, or a :class:`dgcl.graph.Graph`. An edge u->v
            means that v reads u.
        topology: The machine: "auto" (detected, and logged at INFO), a preset's name, a JSON file, or a
            :class:`~dgcl.topology.Topology`.
        part: ``(N,)`` the owner of every vertex, instead of partitioning.
        partition: "auto", "metis", "kaminpar", "streaming", "random" or "range"; or :class:`dgcl.PartitionOptions`.
        method: The planner, see ``dgcl plan --help``.
        strategy: What is exchanged, and so who sums which edge: "halo" (the owner of its head; layers get complete
            neighbourhoods), "tail" (the owner of its tail), "cover" and "cover:machine" (whatever moves the fewest rows
            between each pair of ranks, or machines), "grid:R,K,S" (:class:`dgcl.grid.grid.Grid`; or "grid:1.5d",
            "grid:2d", "grid:3d"); or "auto", which does what :func:`dgcl.advise` says, and logs it. "windows:W" is
            "halo", summed in windows; "in-place" and "offload:N" are built as "halo": they are called on the
            communicator.
            Or an object with settings of its own: :class:`dgcl.EdgePlacement`.
        model, memory_limit: For "auto": the layers, as "gcn:602,256,41", or your module; and bytes of a rank's device,
            or like "14GB".
        plan: Options of planning: :class:`dgcl.PlanOptions` (bytes of a row, seconds, the gap to stop at); its seed is
            that of the partition, too.
        cache: A folder of rank 0 where partition and plan are kept for the next job that asks for the same
            (:mod:`dgcl.prepare.cache`). An entry that is damaged, or cannot be written, is a warning, no more.
        timeout: Seconds that a rank waits for another inside a call before it gives up.
        channel: How rows travel between ranks: "auto" (through memory where all ranks share it, else by collectives),
            "memory", or "collective", by collectives of ``torch.distributed``; see ``comm.describe()``.
        device: Where the rows are that this rank exchanges: "cpu", or this rank's GPU, as "cuda" (torch's current
            one, if one was set, else that of ``LOCAL_RANK``) or "cuda:1"; all ranks on GPUs, or none
            (:mod:`dgcl.transport.cuda`). GPUs are experimental.
        wire: ``torch.bfloat16``, ``float16`` or ``float32``: floating-point rows that are wider are rounded to it on
            the way, gradients and partial sums likewise; owned rows are exact (:mod:`dgcl.transport.rounding`). The
            same on every rank; None: rows travel as they are.

    Returns:
        This rank's communicator, which is from now on the current one of this thread.

    Raises:
        ValueError, TypeError: Bad arguments on rank 0, or bad options on any; raised on every rank.
        MemoryError: With "auto", nothing fits; raised on every rank.
        OSError: The graph's file is missing or cannot be read; raised on every rank.
        CommError: The ranks share no memory, or one of them is gone.
    """
    control = context.require_control()
    control.limit_waits(timeout)
    settings: Settings | Exception  # what is wrong with them, of which every rank is to hear
    try:
        check_calls(timeout, wire)
        settings = settle(
            control.world_size, plan=plan, partition=partition, strategy=strategy, model=model,
            memory_limit=memory_limit,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        settings = error
    opened = open_devices(control, device)
    places = places_of_ranks(control, "" if opened is None else opened.name)
    topology = topology_of_job(control, topology, places)
    layout = _agreed(control, settings)

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
            balance=settings.partition.balance,
            cache=cache,
            strategy=layout,
        )

    comm = connect(inputs, timeout, channel, opened, wire)
    assert isinstance(settings, Settings)
    windows = settings.windows
    if isinstance(layout, Advised):
        (windows,) = control.exchange([each.windows for each in layout.chosen])[0]
    if windows is not None:
        comm.windows = comm.aggregator(windows=windows).windows
    return comm


def check_calls(timeout: Any, wire: Any) -> None:
    """Raise unless a timeout is a positive number, and calls can have this wire type."""
    check_wire(wire)
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) > 0:
        raise ValueError(f"timeout must be a positive number of seconds (got {shown(timeout)})")


def _agreed(control: Control, settings: Settings | Exception) -> Strategy:
    """The strategy that all ranks ask for. Collective.

    Raises:
        ValueError, TypeError: Ranks ask for different ones, naming two; or what is wrong with a rank's options, the
            first one's that has such; on every rank.
    """
    reports = control.exchange(settings)
    for theirs in reports:
        if isinstance(theirs, Exception):
            raise type(theirs)(*theirs.args)  # ranks that are threads must not share one, and its traceback
    first: Settings = reports[0]
    for rank, theirs in enumerate(reports):
        if (theirs.strategy, theirs.windows) != (first.strategy, first.windows):
            raise ValueError(
                f"strategy must be the same on every rank: rank 0 asks for {first.spelling}, rank {rank} for"
                f" {theirs.spelling}"
            )
    return first.strategy


@set_up_call
def load_comm_info(
    parts: str | os.PathLike[str],
    *,
    timeout: float = 300.0,
    channel: str = "auto",
    device: str | torch.device = "cpu",
    wire: torch.dtype | None = None,
) -> Communicator:
    """Connect ranks whose parts were prepared by ``dgcl partition --out DIR/``. Collective.

    Every rank reads its own file, so the folder must be on every machine (all of it, or the plan and the files of
    the ranks there).

    Args:
        parts: The folder.
        timeout, channel, device, wire: As in :func:`dgcl.build_comm_info`.

    Returns:
        This rank's communicator, which is from now on the current one of this thread.

    Raises:
        ValueError: A file is missing, damaged, or of another set than the others, or there is no such device; on every
            rank.
        CommError: One of the ranks is gone.
    """
    control = context.require_control()
    control.limit_waits(timeout)
    opened = open_devices(control, device)
    problem: Exception | None = None
    share, token, inputs = None, "", None
    try:
        check_calls(timeout, wire)
        share, (token, inputs) = load_share(parts, control.rank, control.world_size)
    except OSError as error:
        problem = ValueError(f"parts: {error.filename or parts} cannot be read: {error.strerror or error}")
    except Exception as error:  # every rank must hear of it, whatever it is
        problem = error
    tokens = agree(control, problem, token)
    if len(set(tokens)) > 1:
        odd = next(rank for rank, other in enumerate(tokens) if other != tokens[0])
        raise ValueError(f"parts: files of rank 0 and rank {odd} were not written together; write them anew")
    assert share is not None
    assert inputs is not None
    compare_rows(control, inputs)
    del inputs
    return connect_shares(share, timeout, channel, opened, wire)


@set_up_call
def connect(
    inputs: Callable[[], Sequence[RankInputs]],
    timeout: float,
    channel: str = "auto",
    device: Device | None = None,
    wire: torch.dtype | None = None,
) -> Communicator:
    """Let rank 0 hand out what each rank makes its share from, and connect the ranks. Collective.

    Args:
        inputs: Called on rank 0 alone; what it raises is raised on every rank.
        timeout, channel, device, wire: As of :func:`connect_shares`.
    """
    control, problem = context.require_control(), None
    mine = from_rank_0(control, inputs, precompile.prepare)
    try:
        share = share_of(mine)
    except Exception as error:  # every rank must hear of it, whatever it is
        problem = error
    agree(control, problem)
    return connect_shares(share, timeout, channel, device, wire)


@set_up_call
def connect_shares(
    share: Share,
    timeout: float,
    channel: str,
    device: Device | None,
    wire: torch.dtype | None = None,
) -> Communicator:
    """Connect ranks that have their shares: this rank's communicator, the current one from now on. Collective.

    Args:
        share: This rank's.
        timeout, channel, wire: As in :func:`build_comm_info`.
        device: This rank's, opened.
    """
    from dgcl.transport.connect import connect_transport

    control = context.require_control()
    precompile.prepare()  # before the ranks meet again: compiling never counts against a deadline of a call
    if share.edges != "head" and device is None:
        from dgcl.aggregation import grouped_edges

        grouped_edges.prepare()
    programs = {exchange.name: exchange.program for exchange in share.exchanges}
    transport = connect_transport(programs, control, timeout, channel, device)
    control.limit = timeout
    comm = Communicator(
        share.exchanges,
        share.local,
        share.sizes,
        control,
        transport if wire is None else Rounding(transport, dict(enumerate(programs.values())), wire),
        timeout=timeout,
        device=None if device is None else device.tensors.device,
        choice=share.choice,
        edges=share.edges,
        grid=share.grid,
    )
    add_communicator(comm)
    return comm
