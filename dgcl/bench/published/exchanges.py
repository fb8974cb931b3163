"""What the published algorithms exchange, as relations: who owns, and who wants, each of some items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.build import connect
from dgcl.communicator import Communicator
from dgcl.graph import Graph, as_graph
from dgcl.grid.grid import Grid
from dgcl.partition import check_part
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.prepare.shares import Share
from dgcl.program import compile_programs
from dgcl.program.exchange import HALO, Exchange
from dgcl.program.verify import verify_programs
from dgcl.ranks.context import context
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import Demand, demand_of_pairs
from dgcl.relation.local_graph import LocalGraph
from dgcl.topology import Topology, resolve_topology

__all__ = ["PUBLISHED", "connect_exchanges", "mean_of_ranks", "places_by_id", "scales_of", "wanted_at"]

#: What such a communicator calls the placement of edges.
PUBLISHED = "published"


def connect_exchanges(
    graph: Any,
    part: Any,
    grid: Grid,
    lay_out: Callable[[Graph, NDArray[np.int32]], tuple[Mapping[str, Demand], list[Any]]],
    topology: str | Topology,
    row_bytes: Mapping[str, int],
    timeout: float,
) -> tuple[Communicator, Any]:
    """Plan exchanges, prove and compile them, and connect the ranks. Collective.

    Args:
        graph: On rank 0.
        part: ``(N,)`` the owner of each vertex, as for grids; on rank 0.
        grid: The grid.
        lay_out: Called on rank 0 alone with graph and owners: the demand of each exchange, that of "halo"
            first, and for each rank what it is to know besides.
        topology: The machine.
        row_bytes: Of the rows of each exchange, to plan for.
        timeout: Seconds that a rank waits for another inside a call.

    Returns:
        The communicator, whose vertices are the items of "halo", and what this rank is to know.
    """
    control = context.require_control()
    told: list[Any] = []

    def share_out() -> list[Share]:
        checked = as_graph(graph)
        demands, of_ranks = lay_out(checked, check_part(part, checked.num_nodes, grid.size, allow_empty=True))
        machine = resolve_topology(topology, control.world_size)
        made = [_planned(name, each, machine, row_bytes[name]) for name, each in demands.items()]
        told.extend(of_ranks)
        sizes = (demands[HALO].num_items, 0)
        return [
            Share(each, _no_edges(each[0], sizes[0]), sizes, "", PUBLISHED)
            for each in zip(*made, strict=True)
        ]

    comm = connect(share_out, Communicator, timeout)
    with control.collective("published"):
        return comm, control.scatter(told if control.rank == 0 else None)


def _planned(name: str, demand: Demand, machine: Topology, row_bytes: int) -> list[Exchange]:
    """An exchange of every rank, planned and proved."""
    classes = build_classes(demand)
    plan = make_plan(classes.relation, machine, options=PlanOptions(row_bytes=row_bytes))
    programs = compile_programs(plan, classes)
    verify_programs(programs, plan, demand)
    return [Exchange(name, plan, program) for program in programs]


def _no_edges(halo: Exchange, num_items: int) -> LocalGraph:
    """The local graph of a rank whose edges are not the communicator's business."""
    owned, others = halo.program.owned_ids, halo.program.halo_ids
    none = np.zeros(len(owned) + len(others), np.int64)
    return LocalGraph(
        owned_ids=owned,
        halo_ids=others,
        indptr=np.zeros(len(owned) + 1, np.int64),
        indices=np.zeros(0, np.int32),
        edge_first=none[: len(owned)],
        edge_order=None,
        in_degrees=none,
        out_degrees=none,
        num_nodes_global=num_items,
    )


def wanted_at(owner: NDArray[np.integer[Any]], ranks: NDArray[np.integer[Any]], world_size: int) -> Demand:
    """The demand in which each item is wanted by every one of its ranks, ``(N, K)``, but for its owner."""
    items = np.repeat(np.arange(len(owner)), ranks.shape[1])
    return demand_of_pairs(owner, items, ranks.reshape(-1), world_size)


def places_by_id(comm: Communicator, exchange: str) -> Tensor:
    """``(num_local,)`` int64: which local row of an exchange has the smallest id, the next one, and so on."""
    return torch.from_numpy(np.argsort(comm.layouts[exchange].global_ids("local"), kind="stable"))


def scales_of(graph: Graph, reduce: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``(N,)`` by what the row of each tail is multiplied, and the sum at each head.

    Args:
        graph: The graph; for "gcn" with self loops.
        reduce: "sum", "mean", or "gcn": 1 over the square roots of the in-degrees of both ends.

    Raises:
        ValueError: Another word.
    """
    ones, degree = np.ones(graph.num_nodes), np.maximum(graph.in_degrees(), 1)
    match reduce:
        case "sum":
            return ones, ones
        case "mean":
            return ones, 1 / degree
        case "gcn":
            return degree**-0.5, degree**-0.5
    raise ValueError(f"reduce must be 'sum', 'mean' or 'gcn' (got {reduce!r})")


def mean_of_ranks(own: Tensor, count: Tensor, comm: Communicator, *, counted: bool = True) -> Tensor:
    """The mean of a loss over all ranks, the same on each, with the gradient of this rank's share. Collective.

    Args:
        own: This rank's sum of losses.
        count: Of how many.
        comm: The communicator.
        counted: Whether they count: of ranks with the same rows those of one do; all have a gradient.
    """
    given = torch.stack([own.detach().double(), count.double()]) * counted
    total, number = comm.all_reduce_sum(given, "cross_entropy")
    share = own / number.to(own.dtype)
    return share + ((total / number).to(own.dtype) - share).detach()
