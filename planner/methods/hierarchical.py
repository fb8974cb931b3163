"""Plans clusters machine by machine, for hundreds of ranks: a row enters each machine once, and is passed on inside.

Trees are planned one after the other, each at the loads that all others make. On its way into a machine a row takes
the connections and the stage that it leaves least busy, relative to the time that the stage should take: straight from
its owner to a destination, as long as that makes no stage too long; else through another device of the owner's machine
(whose NIC is free), from a third machine that has the row already, or to a device of the machine that does not need it.
Inside the machine it goes on from where it arrived, in a later stage, while NICs bring the next rows.

Then passes: stages are allowed a time between the bound and what they take, in the proportion that they take, and trees
on connections that take longer are planned anew. Numbers of stages are tried in turn, each as long as a pass gains.
Time grows with edges, not with pairs of ranks and sets of ranks; nothing is assumed of the network between machines.
Nothing is proved here: the bound by cuts is (:mod:`dgcl.planner.bounds`), and it knows nothing of machines.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.cost import GIGA
from dgcl.planner.options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.methods.hierarchical_kernel import Machines
    from dgcl.topology import Topology

NUMBERS = (4, 3, 2, 6)  # of stages
MAX_PASSES = 8
SLACK = 0.03  # of stages, above the bound, in the first pass
FAIR = 0.01  # above the bound, relatively; below, no further number of stages is tried
TINY = 1e-9  # share of the time that a stage which is not used is allowed
WORTH = 0.002  # share of the time that a pass must take off
FAR = 1.25  # over the best plan after one pass: another number of stages is tried instead
WORK = 20_000_000  # deliveries planned: no further number of stages, nor a third pass, begins beyond
EDGES = 1 << 20  # planned at a time; the time limit is looked at in between

_Edges = tuple[Int64Array, Int32Array, Int32Array, Int32Array]  # ptr, src, dst, stage


def best_trees(
    relation: Relation,
    topology: Topology,
    options: PlanOptions,
    bound: float,
    deadline: float = np.inf,
    needed: bool = False,
) -> Trees | None:
    """Return the fastest trees of all numbers of stages tried; None if links are missing or the deadline is over.

    Args:
        relation, topology, options: as of a planner.
        bound: seconds that no plan can beat, > 0.
        deadline: on the clock of time.perf_counter.
        needed: whether trees are needed even if the deadline is over.
    """
    from dgcl.planner.column_generation.trees.seconds import trees_seconds

    unit = options.row_bytes / GIGA
    machines, arrays = _machines(topology, unit), topology.arrays()
    wait = float(machines.latency.max(initial=0.0))
    order = np.random.default_rng(options.seed).permutation(relation.num_classes)
    best, least, work = None, np.inf, 0
    for num_stages in NUMBERS:
        edges, room = None, np.full(num_stages, wait + (1.0 + SLACK) * bound / unit / num_stages)
        busy = np.zeros((arrays.num_directions, num_stages))
        before = np.inf
        for number in range(MAX_PASSES):
            found = _run_pass(relation, machines, order, busy, room, edges, np.inf if needed else deadline)
            if found is None:
                break
            edges, needed = found, False
            work += relation.deliveries
            trees = Trees(order.astype(np.int32), relation.count[order], *edges)
            seconds = trees_seconds(trees, arrays, options.row_bytes)
            if seconds < least:
                best, least = trees, seconds
            late = time.perf_counter() > deadline or (work > WORK and number > 0)
            if (
                late
                or seconds > FAR * least
                or seconds > (1.0 - WORTH) * before
                or least <= (1 + options.gap) * bound
            ):
                break
            before = min(before, seconds)
            taken = busy.max(axis=0)
            room = wait + np.maximum(taken, TINY * taken.sum()) * (0.5 + 0.5 * bound / unit / taken.sum())
        if least <= (1.0 + FAIR) * bound or work > WORK or time.perf_counter() > deadline:
            break
    return best


def _run_pass(
    relation: Relation,
    machines: Machines,
    order: Int64Array,
    busy: FloatArray,
    room: FloatArray,
    before: _Edges | None,
    deadline: float,
) -> _Edges | None:
    """Plan all trees, or those anew that are in the way; None if links are missing or the deadline is over."""
    from dgcl.planner.methods.hierarchical_kernel import Loads, plan_trees

    num, none = order.shape[0], np.zeros(0, np.int32)
    size, start, parts = np.zeros(num, np.int64), 0, []
    before = (np.zeros(num + 1, np.int64), none, none, none) if before is None else before
    while start < num:
        if time.perf_counter() > deadline:
            return None
        src, dst, stage = np.empty((3, EDGES + 3 * relation.world_size), np.int32)
        end = plan_trees(
            machines, Loads(busy, room), order, relation.source, relation.dests, relation.count, before, start,
            size, src, dst, stage,
        )  # fmt: skip
        if end < 0:
            return None
        used = int(size[start:end].sum())
        parts.append([array[:used].copy() for array in (src, dst, stage)])
        start = end
    src, dst, stage = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return np.concatenate([[0], np.cumsum(size)]), src, dst, stage


def _machines(topology: Topology, unit: float) -> Machines:
    """Return the links and machines of a topology; `unit` is the seconds of one row per GB/s."""
    from dgcl.planner.methods.hierarchical_kernel import Machines

    arrays = topology.arrays()
    _, machine = np.unique([device.machine for device in topology.devices], return_inverse=True)
    member = np.argsort(machine, kind="stable")
    first = np.searchsorted(machine[member], np.arange(int(machine.max()) + 2))
    return Machines(
        arrays.link_of, arrays.link_ptr, arrays.link_directions, arrays.link_latency / unit, 1.0 / arrays.bandwidth,
        machine.astype(np.int64), first.astype(np.int64), member.astype(np.int64),
    )  # fmt: skip
