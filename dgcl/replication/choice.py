"""What a job exchanges: rows of vertices by the ordinary plan, or of copies by one inside machines; which, and why.

Both are held against each other by what a layer takes, forward and backward: twice the predicted seconds of an
exchange, and the work of the rank that has most (:mod:`dgcl.replication.work`). And by what the fullest rank
holds (:meth:`~dgcl.replication.counts.Holdings.bytes_held`). A lower bound of both is known before anything is
copied, so that what is hopeless or far too large costs a few passes over the edges; halo rows are counted after.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.planner.errors import NoRouteError
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import fingerprint, plan_arrays
from dgcl.planner.reading.render import seconds, size
from dgcl.planner.relation import Relation
from dgcl.ranks.free_memory import available_memory
from dgcl.relation.classes import VertexClasses, build_classes
from dgcl.replication import METHOD
from dgcl.replication.copies import Copies, copy_graph
from dgcl.replication.counts import CopyCounts, Holdings, count_copies, holdings, machine_numbers
from dgcl.replication.work import Work, measure_work
from dgcl.topology import Topology

if TYPE_CHECKING:
    from dgcl.graph import Graph
    from dgcl.planner import PlanOptions

_log = logging.getLogger("dgcl")


Stored = Callable[[NDArray[np.int32], Relation, bool, Callable[[], Plan]], Plan]
"""A plan for owners of vertices and a relation, of copies or not; where none is stored, the one that is made."""


@dataclass(frozen=True)
class Replication:
    """What a user says about replicating across machines.

    Attributes:
        hops: The exchanges of a forward pass that build on each other; None: not told, so it cannot be done.
        limit: Bytes that a rank may take for rows and graph; None: what is free.
        free: Bytes that are free where each rank computes; None: any.
        work: What a layer costs a rank besides communication; None: measured where that matters, on this CPU.
    """

    hops: int | None = None
    limit: int | None = None
    free: tuple[int, ...] | None = None
    work: Work | None = None

    def room(self, rank: int) -> float:
        """Bytes that a rank may take."""
        if self.limit is not None:
            return self.limit
        return math.inf if self.free is None else self.free[rank]


@dataclass(frozen=True, eq=False)
class Arrangement:
    """What is exchanged, and how.

    Attributes:
        graph, part: Of vertices, or of copies, with the rank of each.
        classes: Who needs whom.
        plan: For that relation.
        copies: None: they are the vertices.
        why: Why this and nothing else, in words; "" where there was no choice.
    """

    graph: Graph
    part: NDArray[np.int32]
    classes: VertexClasses
    plan: Plan
    copies: Copies | None = None
    why: str = ""


def arrange(
    graph: Graph,
    part: NDArray[np.int32],
    classes: VertexClasses,
    topology: Topology,
    method: str,
    options: PlanOptions,
    wanted: Replication,
    stored: Stored | None = None,
) -> Arrangement:
    """Plan by a method of the planner, or replicate across machines and plan inside; "auto" is the better one.

    Where all ranks are on one machine there is nothing to replicate, and both are the plan "auto".

    Args:
        graph, part, classes: Vertices, their owners, and their relation.
        topology: The machines.
        method: A planner's, or ``replicate-across-machines``.
        options: For planning; with a time limit, each of two plans may take it.
        wanted: How deep replicas must go, and what they may take.
        stored: Gives plans that were made before.

    Raises:
        ValueError: Unknown method, or ``hops`` is missing.
        MemoryError: What was asked for does not fit. By a lower bound (owned rows and edges) that is known before
            anything is copied; or by what is counted then, halo rows included.
    """
    stored = stored or _make_anew
    machines = machine_numbers(topology)
    several = bool(machines.max(initial=0))
    if method == METHOD:
        if wanted.hops is None:
            raise ValueError(
                f"hops must be given with method {METHOD!r}: how many exchanges of a forward pass build on each"
                " other, usually the number of layers (got None)"
            )
        if several:
            return _replicate(graph, part, machines, topology, options, wanted, stored)
        method = "auto"
    plan = stored(
        part, classes.relation, False, lambda: make_plan(classes.relation, topology, method, options)
    )
    plain = Arrangement(graph, part, classes, plan)
    if not several and method == "auto" and wanted.hops is not None:
        return _told(plain, "the ordinary plan: all ranks are on one machine, so nothing is replicated")
    if method != "auto" or not several:
        return plain
    if wanted.hops is None:
        _log.info("%s was not considered: hops, the number of layers, was not given", METHOD)
        return plain
    return _choose(plain, machines, topology, options, wanted, stored)


def check_limit(limit: Any) -> int:
    """Return a number of bytes as an int.

    Raises:
        ValueError: It is no positive whole number.
    """
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)) or limit <= 0:
        raise ValueError(f"memory_limit must be a positive whole number of bytes, or None (got {limit!r})")
    return int(limit)


def inside_machines(topology: Topology) -> Topology:
    """The topology without the links between machines."""
    machine = {device.name: device.machine for device in topology.devices}
    links = tuple(link for link in topology.links if machine[link.src] == machine[link.dst])
    return Topology(f"{topology.name}, inside machines", topology.devices, topology.connections, links)


def _replicate(
    graph: Graph,
    part: NDArray[np.int32],
    machines: NDArray[np.int64],
    topology: Topology,
    options: PlanOptions,
    wanted: Replication,
    stored: Stored,
) -> Arrangement:
    """Because the user says so."""
    assert wanted.hops is not None
    counts = count_copies(graph, part, machines, wanted.hops)
    most = _bytes(counts.expected(), graph, options, wanted).max()
    _log.info("%s: %s, at least %s on the fullest rank", METHOD, counts, size(int(most)))
    problem = _too_much(counts, graph, options, wanted)
    if problem is None:
        made, held = _carry_out(graph, part, counts, topology, METHOD, options, stored)
        problem = _no_room(_bytes(held, graph, options, wanted), wanted)
        if problem is None:
            return _told(made, f"{METHOD} was asked for: {_line(made, held, graph, options, wanted)}")
    raise MemoryError(
        f"method {METHOD!r} does not fit: {problem}; {counts}. Take fewer hops, more ranks on each machine,"
        " parts that cut fewer edges between machines, or method 'auto'"
    )


def _choose(
    plain: Arrangement,
    machines: NDArray[np.int64],
    topology: Topology,
    options: PlanOptions,
    wanted: Replication,
    stored: Stored,
) -> Arrangement:
    """Because it is faster and fits; said at INFO."""
    assert wanted.hops is not None
    graph, part = plain.graph, plain.part
    held = holdings(graph, part, plain.plan.relation)
    counts = count_copies(graph, part, machines, wanted.hops)
    problem = _too_much(counts, graph, options, wanted)
    if problem is not None:
        return _told(plain, f"auto chose the ordinary plan: {METHOD} does not fit, {problem}; {counts}")
    work = wanted.work or measure_work(options.row_bytes)
    wanted = replace(wanted, work=work)
    mine = _line(plain, held, graph, options, wanted)
    least = _least_work(counts, work)
    if least >= _layer_seconds(plain.plan, held, work):
        return _told(
            plain,
            f"auto chose the ordinary plan: {mine}; with {METHOD} work alone would take {seconds(least)} or more,"
            f" as {counts}",
        )
    try:
        made, copied = _carry_out(graph, part, counts, topology, "auto", options, stored)
    except NoRouteError as error:  # ranks of a machine that only another machine joins
        return _told(plain, f"auto chose the ordinary plan: {METHOD} is impossible: {error}")
    theirs = f"{_line(made, copied, graph, options, wanted)}, as {counts}"
    problem = _no_room(_bytes(copied, graph, options, wanted), wanted)
    if problem is not None:
        return _told(plain, f"auto chose the ordinary plan: {METHOD} does not fit, {problem}; {counts}")
    if _layer_seconds(made.plan, copied, work) < _layer_seconds(plain.plan, held, work):
        return _told(made, f"auto chose {METHOD}: {theirs}; with the ordinary plan {mine}")
    return _told(plain, f"auto chose the ordinary plan: {mine}; with {METHOD} {theirs}")


def _carry_out(
    graph: Graph,
    part: NDArray[np.int32],
    counts: CopyCounts,
    topology: Topology,
    method: str,
    options: PlanOptions,
    stored: Stored,
) -> tuple[Arrangement, Holdings]:
    """Copy and plan; ``method`` is what the plan calls itself."""
    copies = copy_graph(graph, part, counts)
    classes = build_classes(copies.graph, copies.part, len(counts.core))

    def make() -> Plan:
        plan = make_plan(classes.relation, inside_machines(topology), "auto", options)
        facts = {"hops": counts.hops, "copies": counts.row_factor, "edges": counts.edge_factor}
        meta = {**plan.meta, "method": method, "replication": facts}
        meta["fingerprint"] = fingerprint(plan_arrays(plan.relation, plan.trees), meta)
        return Plan(plan.relation, plan.trees, plan.topology, meta)

    plan = stored(part, classes.relation, True, make)
    made = Arrangement(copies.graph, copies.part, classes, plan, copies)
    return made, holdings(copies.graph, copies.part, plan.relation)


def _make_anew(part: NDArray[np.int32], relation: Relation, copied: bool, make: Callable[[], Plan]) -> Plan:
    """No plan is stored."""
    return make()


def _told(made: Arrangement, why: str) -> Arrangement:
    _log.info("%s", why)
    return replace(made, why=why)


def _bytes(held: Holdings, graph: Graph, options: PlanOptions, wanted: Replication) -> NDArray[np.int64]:
    assert wanted.hops is not None
    return held.bytes_held(options.row_bytes, wanted.hops, graph.edge_ids is not None)


def _too_much(counts: CopyCounts, graph: Graph, options: PlanOptions, wanted: Replication) -> str | None:
    """What does not fit, by the counts alone."""
    needed, there = counts.bytes_to_build(graph.edge_ids is not None), available_memory()
    if needed > there:
        return f"rank 0 would take {size(needed)} to copy the graph, and {size(there)} are free there"
    return _no_room(_bytes(counts.expected(), graph, options, wanted), wanted, "at least")


def _no_room(needed: NDArray[np.int64], wanted: Replication, how: str = "about") -> str | None:
    over = [held - wanted.room(rank) for rank, held in enumerate(needed.tolist())]
    rank = int(np.argmax(over))
    if over[rank] <= 0:
        return None
    return f"rank {rank} would hold {how} {size(int(needed[rank]))}, and may take {size(wanted.room(rank))}"


def _layer_seconds(plan: Plan, held: Holdings, work: Work) -> float:
    return 2 * plan.predicted_seconds + float(work.seconds(held).max())


def _least_work(counts: CopyCounts, work: Work) -> float:
    """Seconds that no way to share out the copies of the fullest machine can beat."""
    spent = np.bincount(counts.machine_of_rank, weights=work.seconds(counts.expected()))
    return float((spent / np.bincount(counts.machine_of_rank)).max())


def _line(made: Arrangement, held: Holdings, graph: Graph, options: PlanOptions, wanted: Replication) -> str:
    """Seconds and bytes in words."""
    most = size(int(_bytes(held, graph, options, wanted).max()))
    exchange = 2 * made.plan.predicted_seconds
    if wanted.work is None:
        return (
            f"{seconds(exchange)} a layer of exchange, forward and backward, and {most} on the fullest rank"
        )
    busy = float(wanted.work.seconds(held).max())
    return (
        f"{seconds(exchange + busy)} a layer, forward and backward ({seconds(exchange)} of exchange,"
        f" {seconds(busy)} of work), and {most} on the fullest rank"
    )
