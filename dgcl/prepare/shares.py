"""From a graph to every rank's share: partition, relation, plan, proof, programs, local graphs.

All that needs the graph and no ranks, as one pure function; :mod:`dgcl.build` runs it on rank 0.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph, as_graph
from dgcl.partition import METHODS as PARTITIONS
from dgcl.partition import partition_graph
from dgcl.partition.check import check_part
from dgcl.partition.replication import check_hops
from dgcl.planner import PlanOptions
from dgcl.planner.plan import Plan
from dgcl.prepare.cache import cache_key
from dgcl.prepare.stored_plans import StaleParts, StoredPlans
from dgcl.program import Program, compile_programs
from dgcl.program.verify import verify_programs
from dgcl.ranks.machines import host_of_ranks
from dgcl.relation.classes import VertexClasses, build_classes
from dgcl.relation.local_graph import LocalGraph, build_local_graphs
from dgcl.replication import METHOD
from dgcl.replication.choice import Arrangement, Replication, arrange, check_limit
from dgcl.replication.copies import vertex_graph, vertex_program
from dgcl.replication.counts import machine_numbers
from dgcl.topology import Topology, resolve_topology

_log = logging.getLogger("dgcl")


@dataclass(frozen=True, eq=False)
class Share:
    """What one rank needs to take part.

    Attributes:
        program: What it does in every call.
        local: Its edges and degrees.
        plan: The whole plan.
        sizes: (vertices, edges) of the whole graph.
        choice: Why this plan, where there was a choice; for people.
    """

    program: Program
    local: LocalGraph
    plan: Plan
    sizes: tuple[int, int]
    choice: str = ""


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
    replication: Replication | None = None,
) -> list[Share]:
    """Partition, plan, prove and compile; everything that needs the graph and no ranks.

    Arguments and errors as in :func:`dgcl.build_comm_info`; ``replication`` holds what is said there by ``hops``
    and ``memory_limit``.
    """
    options, wanted = options or PlanOptions(), replication or Replication()
    if wanted.hops is not None:
        check_hops(wanted.hops)
    if wanted.limit is not None:
        check_limit(wanted.limit)
    if partition not in PARTITIONS:
        raise ValueError(f"partition must be one of {', '.join(PARTITIONS)} (got {partition!r})")
    clock = _Clock()
    checked = as_graph(graph)
    if isinstance(topology, str) and topology == "auto":
        machine = host_of_ranks(world_size)
    else:
        machine = resolve_topology(topology, world_size)
    given = None if part is None else check_part(part, checked.num_nodes, world_size, allow_empty=True)
    clock.lap("graph and topology")
    plans = StoredPlans()
    if cache is not None:
        key = cache_key(checked, world_size, machine, given, partition, method, options)
        copied = method == METHOD and bool(machine_numbers(machine).any())
        plans = StoredPlans(cache, {**key, "place": True} if place else key, wanted.hops, copied)
    owners = plans.part(checked.num_nodes, world_size)
    clock.lap("cache")
    made = None
    if owners is not None:
        try:
            classes = build_classes(checked, owners, world_size)
            made = arrange(checked, owners, classes, machine, method, options, wanted, plans.plan)
        except StaleParts:
            made = None
        clock.lap("plan")
    if made is None:
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
        made = arrange(checked, owners, classes, machine, method, options, wanted, plans.plan)
        clock.lap("plan")
    programs = compile_programs(made.plan, made.classes, made.part)
    verify_programs(programs, made.plan, made.classes, made.part)
    clock.lap("programs and proof")
    assert owners is not None
    if plans.store(owners):
        clock.lap("storing")
    shares = _share_out(checked, made, programs)
    clock.lap("local graphs")
    plan = made.plan
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
    return shares


def _share_out(graph: Graph, made: Arrangement, programs: list[Program]) -> list[Share]:
    """Every rank's share; rows of copies under the ids of their vertices."""
    sizes = (graph.num_nodes, graph.num_edges)
    locals_ = build_local_graphs(made.graph, [(program.owned_ids, program.halo_ids) for program in programs])
    if made.copies is None:
        pairs = zip(programs, locals_, strict=True)
        return [Share(program, local, made.plan, sizes, made.why) for program, local in pairs]
    degrees = (graph.in_degrees(), graph.out_degrees())
    return [
        Share(
            vertex_program(program, made.copies),
            vertex_graph(local, program.rank, made.copies, graph, degrees),
            made.plan,
            sizes,
            made.why,
        )
        for program, local in zip(programs, locals_, strict=True)
    ]


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
