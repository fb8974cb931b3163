"""Decides the chunks of all ranks and their order, and compiles what each rank does in each batch.

Each rank divides its own vertices into chunks. Rank 0 collects which rows they read, orders them and compiles all
ranks' tables. With a memory limit, numbers of chunks are tried, and layers measured, until as few as possible fit, with
``SPARE`` of the limit left free. ``rehearsed`` does the same without ranks, for predictions.
Called by `offload` and `dgcl/advisor/weighing`. Free to change while as few chunks are taken as keep the limit, and a
limit that nothing keeps is refused on every rank (`tests/dgcl/offload/test_offload.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.communicator import Communicator
from dgcl.graph import Graph
from dgcl.offload.batch_tables import RankTables, compile_tables
from dgcl.offload.chunks import CHUNK_BY, MOST_CHUNKS, Chunking, cut_chunk
from dgcl.offload.offload_prediction import DeviceRows, device_rows, smallest_fitting
from dgcl.offload.residency import Ids
from dgcl.offload.schedule import Schedule, reorganise, volumes
from dgcl.planner import METHODS, PlanOptions
from dgcl.ranks.answers import from_rank_0
from dgcl.ranks.control import Control
from dgcl.ranks.whole_rows import agree, require_same
from dgcl.relation.local_graph import LocalGraph, build_local_graph, edges_into
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice, check_index


@dataclass(frozen=True)
class Request:
    """The settings of an arrangement; the same on every rank, and checked.

    Attributes:
        chunks: How many; None: as few as fit into ``memory_limit``.
        memory_limit: Bytes of device memory of a rank.
        widths: Elements of a row of the input and of each layer's result, for ``memory_limit``; else none.
        itemsize: Bytes of an element.
        chunk_by, slots: How chunks are made; the rows that fit.
        method: Of planning.
        kind: Of graphs that layers get.
    """

    chunks: int | None
    memory_limit: int | None
    widths: tuple[int, ...]
    itemsize: int
    chunk_by: str
    slots: int | None
    method: str
    kind: str

    def __post_init__(self) -> None:
        if (self.chunks is None) == (self.memory_limit is None):
            raise ValueError(
                "one of chunks and memory_limit must be given"
                f" (got chunks={self.chunks!r} and memory_limit={self.memory_limit!r})"
            )
        if self.chunks is not None:
            check_index(self.chunks, "chunks", 1, MOST_CHUNKS)
        if self.slots is not None:
            check_index(self.slots, "slots", 1)
        check_choice(self.chunk_by, "chunk_by", CHUNK_BY)
        check_choice(self.method, "method", METHODS)
        check_choice(self.kind, "kind", ("csr", "pyg", "dgl"))


@dataclass(frozen=True, eq=False)
class Arrangement:
    """One rank's share of the arrangement.

    Attributes:
        tables: What it does in each batch.
        rows: Of each batch the rows of ``local.owned_ids`` in its chunk.
        volumes: (V_ori, V_p2p, V_ru) of all ranks.
        delivered: Rows (loaded from the host, between ranks) in one forward, over all ranks.
        exchange_seconds: Predicted, of the exchanges of one forward.
        device: Rows of this rank's device memory, from which widths make bytes.
        inside: Bytes that each layer was measured to make inside itself; 0: not measured.
    """

    tables: RankTables
    rows: Sequence[Ids]
    volumes: tuple[int, int, int]
    delivered: tuple[int, int]
    exchange_seconds: float
    device: DeviceRows
    inside: Sequence[int] = ()


#: Of the limit: what is left free, as steps held up to 6 % more than was predicted (docs/offload.md), and what a
#: prediction may be below that before fewer chunks are tried.
SPARE, PRECISION = 1 / 16, 0.1


def arrange(
    comm: Communicator, request: Request, options: PlanOptions, measure: Callable[[list[Ids]], list[int]]
) -> Arrangement:
    """Arrange the chunks of all ranks. Collective.

    Args:
        comm, options: The rank's.
        request: The same on every rank.
        measure: Bytes that each layer makes inside itself, of chunks.

    Raises:
        ValueError: Bad arguments, the ranks ask for different things, or nothing fits; on every rank.
    """
    control, local = comm.control, comm.local
    chunking = Chunking(local, request.chunk_by)
    scheduled: dict[int, Any] = {}  # of the last number of chunks; what it is knows rank 0

    @cache
    def counted(chunks: int) -> tuple[DeviceRows, list[int]]:
        problem: Exception | None = None
        inside: list[int] = []
        rows: list[Ids] = []
        try:
            rows = chunking.rows(chunks, one_of_many=request.chunks is None)
            inside = measure(rows)
        except Exception as error:
            problem = error
        agree(control, problem)
        reports = control.gather((local.owned_ids, rows, _reads(local, rows)))

        def devices() -> list[DeviceRows]:
            arranged = _scheduled(reports or [], request.slots)
            scheduled[chunks] = reports, *arranged, device_rows(*arranged[1:])
            return scheduled[chunks][-1]

        scheduled.clear()
        scheduled[chunks] = ()
        return from_rank_0(control, devices), inside

    def peak(chunks: int) -> int:
        device, inside = counted(chunks)
        return max(control.exchange(device.bytes(request.widths, request.itemsize, inside=inside).total))

    requests = control.exchange(request)
    require_same(**{name: [vars(each)[name] for each in requests] for name in vars(request)})
    chunks, limit = request.chunks, request.memory_limit
    if limit is not None:
        most = min(MOST_CHUNKS, max(1, *control.exchange(local.num_owned)))
        chunks, least = smallest_fitting(peak, int(limit * (1 - SPARE)), most, PRECISION)
        if least > limit:
            raise _nothing_fits(control, local, request, least)
    assert chunks is not None
    if chunks not in scheduled:
        counted.cache_clear()
    _, inside = counted(chunks)
    arrangement = from_rank_0(
        control, lambda: _compiled(scheduled[chunks], comm.plan.topology, request, options)
    )
    return replace(arrangement, inside=inside)


def _reads(local: LocalGraph, rows: list[Ids]) -> list[tuple[Ids, tuple[int, int]]]:
    """What the other ranks must know of this rank's chunks."""
    cut = (cut_chunk(local, each) for each in rows)
    return [(chunk.reads, chunk.size) for chunk in cut]


def _owner(owned: Sequence[Ids]) -> np.ndarray:
    owner = np.empty(sum(map(len, owned)), np.int32)
    for rank, ids in enumerate(owned):
        owner[ids] = rank
    return owner


def rehearsed(graph: Graph, part: NDArray[np.int32], num_ranks: int, chunks: int) -> list[DeviceRows]:
    """Rows of each rank's device memory with so many chunks, which are cut as an Offload cuts them by default."""
    reports = []
    for rank in range(num_ranks):
        mine = np.flatnonzero(part == rank)
        edges = edges_into(graph, mine)
        ids = mine, np.setdiff1d(edges.sources, mine), mine[:0]
        owned, halo, partial = ((each, np.stack([each] * 3)) for each in ids)
        local = build_local_graph(edges, owned, halo, partial, graph.num_nodes)
        reports.append((mine, _reads(local, Chunking(local).rows(chunks))))
    _, schedule, sizes = _scheduled(reports, None)
    return device_rows(schedule, sizes)


def _scheduled(reports: list[Any], slots: int | None) -> tuple[list[list[int]], Schedule, list[Any]]:
    """Of all ranks the order of chunks, what is resident, and the sizes of chunks in this order."""
    reads = [[reads for reads, _ in of_chunks] for *_, of_chunks in reports]
    order, schedule = reorganise(reads, _owner([ids for ids, *_ in reports]), slots)
    ordered = [perm.tolist() for perm in order]
    return (
        ordered,
        schedule,
        [[of[k][1] for k in perm] for perm, (*_, of) in zip(ordered, reports, strict=True)],
    )


def _nothing_fits(control: Control, local: LocalGraph, request: Request, peak: int) -> ValueError:
    """The error where not even chunks of one vertex fit. Collective."""
    degrees = np.diff(local.indptr)
    mine = (int(degrees.max()), int(local.owned_ids[degrees.argmax()])) if len(degrees) else (-1, -1)
    degree, vertex = max(control.exchange(mine))
    least = (degree + 1) * max(request.widths[:-1]) * request.itemsize * 4
    return ValueError(
        f"memory_limit of {request.memory_limit} bytes is too little for any number of chunks, up to {MOST_CHUNKS}: the"
        f" least that was found"
        f" takes {peak} bytes on a rank, and vertex {vertex} with its {degree} in-edges alone up to {least}, rows and"
        " gradients, in slots and as a layer reads them. Ways out: (1) a larger memory_limit, (2) more ranks, (3)"
        " narrower layers, (4) aggregate= so that rows are summed, not kept, (5) fewer in-edges of that vertex"
    )


def _compiled(
    scheduled: tuple[Any, ...], topology: Topology, request: Request, options: PlanOptions
) -> list[Arrangement]:
    """The arrangement of every rank, but for what layers make."""
    reports, ordered, schedule, sizes, devices = scheduled
    rows = [[theirs[k] for k in perm] for perm, (_, theirs, _) in zip(ordered, reports, strict=True)]
    stored = [ids[np.concatenate(theirs)] for theirs, (ids, _, _) in zip(rows, reports, strict=True)]
    tables, plans = compile_tables(schedule, stored, sizes, topology, request.method, options)
    begin = [plan for name, plan in zip(tables[0].programs, plans, strict=True) if name.endswith("begin")]
    return [
        Arrangement(
            tables[rank],
            rows[rank],
            volumes(schedule.reads),
            (int(schedule.host_rows.sum()), int(schedule.device_rows.sum())),
            sum(plan.predicted_seconds for plan in begin),
            devices[rank],
        )
        for rank in range(len(reports))
    ]
