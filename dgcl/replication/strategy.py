"""The strategy that exchanges rows of copies inside machines, and none between them.

What the fullest rank holds (:meth:`~dgcl.replication.counts.Holdings.bytes_held`) has a lower bound that is known
before anything is copied, so that what is far too large costs a few passes over the edges only; halo rows are counted
after.
"""

import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dgcl.partition.replication import check_hops
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.plan_io import fingerprint, plan_arrays
from dgcl.planner.reading.render import seconds, size
from dgcl.program.strategy import Arrangement, Problem
from dgcl.relation.classes import halo_classes
from dgcl.replication.copies import copy_graph, edges_of_copies
from dgcl.replication.counts import CopyCounts, Holdings, count_copies, holdings, machine_numbers
from dgcl.topology import Topology
from dgcl.topology.free_memory import available_memory
from dgcl.topology.sizes import as_bytes

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class Replicas:
    """Replicates across machines; a :class:`~dgcl.program.strategy.Strategy`.

    Where all ranks are on one machine there is nothing to replicate, and rows of vertices are exchanged.

    Attributes:
        hops: How many exchanges of a forward pass build on each other, usually the layers of the model. Replicas reach
            that far. A model with more layers gives wrong numbers, and nothing can notice.
        memory_limit: Bytes that a rank may take for rows and graph, or like "8GB"; None: what is free. A lower bound is
            known before anything is copied; halo rows are counted after. What does not fit is refused.
        free: Bytes that are free where each rank computes, which set-up finds out; None: any.

    Raises:
        ValueError, TypeError: One of them cannot be.
    """

    hops: int
    memory_limit: int | str | None = None
    free: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_hops(self.hops)
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", as_bytes(self.memory_limit, "memory_limit"))

    def first_plan(self, topology: Topology) -> Mapping[str, Any]:
        """What the plan depends on: the hops, if it is that of copies."""
        return {"hops": self.hops} if machine_numbers(topology).any() else {}

    def arrange(self, problem: Problem) -> Arrangement:
        """Copy, and plan inside machines.

        Raises:
            ValueError: Unknown method.
            NoRouteError: Ranks of a machine that only another machine joins.
            MemoryError: It does not fit. By a lower bound (owned rows and edges) that is known before anything is
                copied; or by what is counted then, halo rows included.
        """
        machines = machine_numbers(problem.topology)
        if not machines.any():
            why = "the ordinary plan: all ranks are on one machine, so nothing is replicated"
            return _logged(problem.plan_vertices(), why)
        counts = count_copies(problem.graph, problem.part, machines, self.hops)
        needed, there = counts.bytes_to_build(problem.graph.edge_ids is not None), available_memory()
        if needed > there:
            why = f"rank 0 would take {size(needed)} to copy the graph, and {size(there)} are free there"
            raise self._misfit(counts, why)
        self._check_fit(counts, counts.expected(), problem, "at least")
        arrangement, held = copied(problem, counts)
        most = self._check_fit(counts, held, problem, "about")
        exchange = 2 * arrangement.plan.predicted_seconds
        each = f"{seconds(exchange)} a layer of exchange, forward and backward"
        return _logged(arrangement, f"{counts}; {each}, and {size(most)} on the fullest rank")

    def _check_fit(self, counts: CopyCounts, held: Holdings, problem: Problem, how: str) -> int:
        """Bytes of the fullest rank; raises where a rank may not take what it needs."""
        needed = held.bytes_held(problem.options.row_bytes, self.hops, problem.graph.edge_ids is not None)
        limits = np.full(len(needed), self.memory_limit or math.inf)
        if self.memory_limit is None and self.free is not None:
            limits = np.array(self.free, float)
        rank = int(np.argmax(needed - limits))
        if needed[rank] > limits[rank]:
            why = f"rank {rank} would hold {how} {size(int(needed[rank]))}, and may take {size(limits[rank])}"
            raise self._misfit(counts, why)
        return int(needed.max())

    def _misfit(self, counts: CopyCounts, why: str) -> MemoryError:
        return MemoryError(
            f"replicas of {self.hops} hop(s) do not fit: {why}; {counts}. Take fewer hops, more ranks on each machine,"
            " or parts that cut fewer edges between machines"
        )


def inside_machines(topology: Topology) -> Topology:
    """The topology without the links between machines."""
    machine = {device.name: device.machine for device in topology.devices}
    links = tuple(link for link in topology.links if machine[link.src] == machine[link.dst])
    return Topology(f"{topology.name}, inside machines", topology.devices, topology.connections, links)


def copied(problem: Problem, counts: CopyCounts) -> tuple[Arrangement, Holdings]:
    """Copy and plan, and what ranks hold then."""
    copies = copy_graph(problem.graph, problem.part, counts)
    classes = halo_classes(copies.graph, copies.part, len(counts.core))

    def make() -> Plan:
        plan = make_plan(classes.relation, inside_machines(problem.topology), problem.method, problem.options)
        facts = {"hops": counts.hops, "copies": counts.row_factor, "edges": counts.edge_factor}
        meta = {**plan.meta, "replication": facts}
        meta["fingerprint"] = fingerprint(plan_arrays(plan.relation, plan.trees), meta)
        return Plan(plan.relation, plan.trees, plan.topology, meta)

    plan = problem.plan(classes.relation, make, hops=counts.hops)
    edges_of = functools.partial(edges_of_copies, copies, problem.graph)
    arrangement = Arrangement(classes, plan, edges_of, origin=copies.origin, core=copies.core)
    return arrangement, holdings(copies.graph, copies.part, plan.relation)


def _logged(arrangement: Arrangement, why: str) -> Arrangement:
    _log.info("%s", why)
    return replace(arrangement, why=why)
