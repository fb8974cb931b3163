"""Chooses whether a job exchanges rows of vertices, or of copies inside machines, and says why.

Both are compared by what a layer takes, forward and backward: twice the predicted seconds of an exchange, and the work
of the rank that has most (:mod:`dgcl.replication.work`). And by what the fullest rank holds
(:meth:`~dgcl.replication.counts.Holdings.bytes_held`). A lower bound of both is known before anything is copied, so
that a hopeless or far too large case costs a few passes over the edges only; halo rows are counted after.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.partition.replication import check_hops
from dgcl.planner.errors import NoRouteError
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import fingerprint, plan_arrays
from dgcl.planner.reading.render import seconds, size
from dgcl.program.strategy import Arrangement, Problem
from dgcl.relation.classes import halo_classes
from dgcl.replication import METHOD
from dgcl.replication.copies import copy_graph, edges_of_copies
from dgcl.replication.counts import CopyCounts, Holdings, count_copies, holdings, machine_numbers
from dgcl.replication.work import Work
from dgcl.topology import Topology
from dgcl.topology.free_memory import available_memory

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class Replication:
    """The strategy that replicates across machines where that is asked for, or is better.

    A :class:`~dgcl.program.strategy.Strategy`. With any method but ``"auto"`` and ``"replicate-across-machines"``,
    and where all ranks are on one machine, it exchanges rows of vertices.

    Attributes:
        hops: The exchanges of a forward pass that build on each other; None: unknown, so nothing is replicated.
        limit: Bytes that a rank may take for rows and graph; None: what is free.
        free: Bytes that are free where each rank computes; None: any.
        work: What a layer costs a rank besides communication. Must be given where ``"auto"`` weighs replicas.
    """

    hops: int | None = None
    limit: int | None = None
    free: tuple[int, ...] | None = None
    work: Work | None = None

    def check(self) -> None:
        """Refuse ``hops`` and ``limit`` that cannot be.

        Raises:
            ValueError: Naming the setting.
        """
        if self.hops is not None:
            check_hops(self.hops)
        limit = self.limit
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, (int, np.integer)) or limit <= 0
        ):
            raise ValueError(
                f"memory_limit must be a positive whole number of bytes, or None (got {limit!r})"
            )

    def first_plan(self, topology: Topology, method: str) -> Mapping[str, Any]:
        """What the plan that is asked for first depends on: the hops, if it is that of copies."""
        copied = method == METHOD and bool(machine_numbers(topology).any())
        return {"hops": self.hops} if copied else {}

    def arrange(self, problem: Problem) -> Arrangement:
        """Plan by a method of the planner, or replicate across machines and plan inside; "auto" takes the better.

        Where all ranks are on one machine there is nothing to replicate, and both are the plan "auto". With a time
        limit in ``problem.options``, each of two plans may take it.

        Raises:
            ValueError: Unknown method, or ``hops`` or ``work`` is missing.
            MemoryError: What was asked for does not fit. By a lower bound (owned rows and edges) that is known before
                anything is copied; or by what is counted then, halo rows included.
        """
        method, machines = problem.method, machine_numbers(problem.topology)
        several = bool(machines.max(initial=0))
        if method == METHOD:
            if self.hops is None:
                raise ValueError(
                    f"hops must be given with method {METHOD!r}: how many exchanges of a forward pass build on each"
                    " other, usually the number of layers (got None)"
                )
            if several:
                return _replicate(problem, machines, self)
            method = "auto"
        plain = problem.plan_vertices(method)
        if method != "auto":
            return plain
        if not several:
            if self.hops is None:
                return plain
            return _logged(plain, "the ordinary plan: all ranks are on one machine, so nothing is replicated")
        if self.hops is None:
            _log.info("%s was not considered: hops, the number of layers, was not given", METHOD)
            return plain
        return _choose(problem, plain, machines, self)

    def memory_of(self, rank: int) -> float:
        """Bytes that a rank may take."""
        if self.limit is not None:
            return self.limit
        return math.inf if self.free is None else self.free[rank]


def inside_machines(topology: Topology) -> Topology:
    """The topology without the links between machines."""
    machine = {device.name: device.machine for device in topology.devices}
    links = tuple(link for link in topology.links if machine[link.src] == machine[link.dst])
    return Topology(f"{topology.name}, inside machines", topology.devices, topology.connections, links)


def _replicate(problem: Problem, machines: NDArray[np.int64], replication: Replication) -> Arrangement:
    """Replicate because the user says so."""
    assert replication.hops is not None
    counts = count_copies(problem.graph, problem.part, machines, replication.hops)
    most = _bytes(counts.expected(), problem, replication).max()
    _log.info("%s: %s, at least %s on the fullest rank", METHOD, counts, size(int(most)))
    misfit = _too_much(counts, problem, replication)
    if misfit is None:
        arrangement, held = _carry_out(problem, counts, METHOD)
        misfit = _misfit(_bytes(held, problem, replication), replication)
        if misfit is None:
            return _logged(
                arrangement, f"{METHOD} was asked for: {_line(arrangement, held, problem, replication)}"
            )
    raise MemoryError(
        f"method {METHOD!r} does not fit: {misfit}; {counts}. Take fewer hops, more ranks on each machine,"
        " parts that cut fewer edges between machines, or method 'auto'"
    )


def _choose(
    problem: Problem, plain: Arrangement, machines: NDArray[np.int64], replication: Replication
) -> Arrangement:
    """Take replicas where they are faster and fit; say so at INFO."""
    assert replication.hops is not None
    held = holdings(problem.graph, problem.part, plain.plan.relation)
    counts = count_copies(problem.graph, problem.part, machines, replication.hops)
    misfit = _too_much(counts, problem, replication)
    if misfit is not None:
        return _logged(plain, f"auto chose the ordinary plan: {METHOD} does not fit, {misfit}; {counts}")
    work = replication.work
    if work is None:
        raise ValueError(
            "work must be given to weigh replicas against the ordinary plan: what a layer costs a rank"
            " (dgcl.frameworks.layer_work.measure_work measures it)"
        )
    mine = _line(plain, held, problem, replication)
    least = _least_work(counts, work)
    if least >= _layer_seconds(plain.plan, held, work):
        return _logged(
            plain,
            f"auto chose the ordinary plan: {mine}; with {METHOD} work alone would take {seconds(least)} or more,"
            f" as {counts}",
        )
    try:
        arrangement, copied = _carry_out(problem, counts, "auto")
    except NoRouteError as error:  # ranks of a machine that only another machine joins
        return _logged(plain, f"auto chose the ordinary plan: {METHOD} is impossible: {error}")
    theirs = f"{_line(arrangement, copied, problem, replication)}, as {counts}"
    misfit = _misfit(_bytes(copied, problem, replication), replication)
    if misfit is not None:
        return _logged(plain, f"auto chose the ordinary plan: {METHOD} does not fit, {misfit}; {counts}")
    if _layer_seconds(arrangement.plan, copied, work) < _layer_seconds(plain.plan, held, work):
        return _logged(arrangement, f"auto chose {METHOD}: {theirs}; with the ordinary plan {mine}")
    return _logged(plain, f"auto chose the ordinary plan: {mine}; with {METHOD} {theirs}")


def _carry_out(problem: Problem, counts: CopyCounts, method: str) -> tuple[Arrangement, Holdings]:
    """Copy and plan; ``method`` is what the plan calls itself."""
    copies = copy_graph(problem.graph, problem.part, counts)
    classes = halo_classes(copies.graph, copies.part, len(counts.core))

    def make() -> Plan:
        plan = make_plan(classes.relation, inside_machines(problem.topology), "auto", problem.options)
        facts = {"hops": counts.hops, "copies": counts.row_factor, "edges": counts.edge_factor}
        meta = {**plan.meta, "method": method, "replication": facts}
        meta["fingerprint"] = fingerprint(plan_arrays(plan.relation, plan.trees), meta)
        return Plan(plan.relation, plan.trees, plan.topology, meta)

    plan = problem.plans.plan(problem.part, classes.relation, make, {"hops": counts.hops})
    edges_of = functools.partial(edges_of_copies, copies, problem.graph)
    arrangement = Arrangement(classes, plan, edges_of, origin=copies.origin, core=copies.core)
    return arrangement, holdings(copies.graph, copies.part, plan.relation)


def _logged(arrangement: Arrangement, why: str) -> Arrangement:
    _log.info("%s", why)
    return replace(arrangement, why=why)


def _bytes(held: Holdings, problem: Problem, replication: Replication) -> NDArray[np.int64]:
    assert replication.hops is not None
    return held.bytes_held(problem.options.row_bytes, replication.hops, problem.graph.edge_ids is not None)


def _too_much(counts: CopyCounts, problem: Problem, replication: Replication) -> str | None:
    """What does not fit, by the counts alone."""
    needed, there = counts.bytes_to_build(problem.graph.edge_ids is not None), available_memory()
    if needed > there:
        return f"rank 0 would take {size(needed)} to copy the graph, and {size(there)} are free there"
    return _misfit(_bytes(counts.expected(), problem, replication), replication, "at least")


def _misfit(needed: NDArray[np.int64], replication: Replication, how: str = "about") -> str | None:
    over = [held - replication.memory_of(rank) for rank, held in enumerate(needed.tolist())]
    rank = int(np.argmax(over))
    if over[rank] <= 0:
        return None
    return f"rank {rank} would hold {how} {size(int(needed[rank]))}, and may take {size(replication.memory_of(rank))}"


def _layer_seconds(plan: Plan, held: Holdings, work: Work) -> float:
    return 2 * plan.predicted_seconds + float(work.seconds(held).max())


def _least_work(counts: CopyCounts, work: Work) -> float:
    """Seconds that no way to share out the copies of the fullest machine can beat."""
    spent = np.bincount(counts.machine_of_rank, weights=work.seconds(counts.expected()))
    return float((spent / np.bincount(counts.machine_of_rank)).max())


def _line(arrangement: Arrangement, held: Holdings, problem: Problem, replication: Replication) -> str:
    """Seconds and bytes in words."""
    most = size(int(_bytes(held, problem, replication).max()))
    exchange = 2 * arrangement.plan.predicted_seconds
    if replication.work is None:
        return (
            f"{seconds(exchange)} a layer of exchange, forward and backward, and {most} on the fullest rank"
        )
    busy = float(replication.work.seconds(held).max())
    return (
        f"{seconds(exchange + busy)} a layer, forward and backward ({seconds(exchange)} of exchange,"
        f" {seconds(busy)} of work), and {most} on the fullest rank"
    )
