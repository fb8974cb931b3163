"""Plans clusters machine by machine: a row enters each machine once, and is passed on inside.

For hundreds of ranks: above 64 column generation takes minutes, and this takes seconds. On fewer it finds plans that
column generation of groups (`planner/column_generation/search/grouped.py`) misses; no rule tells which of the two wins,
so `auto` keeps both (figures are there). `best_trees` says how trees and stages are planned. Time grows with edges, not
with pairs or sets of ranks; nothing is assumed of the network between machines.
Called by `auto`. Free to change while every destination gets its row once, each machine is entered once, and the time
is near the bound by stages: within 5 to 75 %, by topology (`tests/planner/methods/test_hierarchical.py`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import FloatArray, Int32Array, Int64Array, pointers
from dgcl.planner.bounds.cuts import machines_of
from dgcl.planner.cost import GIGA
from dgcl.planner.simulator.simulated_machine import narrowest
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.bounds.stages import StageTimes
    from dgcl.planner.methods.hierarchical_kernel import Loads, Machines
    from dgcl.planner.planning_options import PlanOptions
    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology
    from dgcl.topology.arrays import TopologyArrays

PATTERNS = ("ffff", "fff", "ff", "fn", "nfn", "ffn", "ffffff")  # f: a far stage, n: a near one
# Steps from machine to machine; for each a pattern of as many far stages as that takes, or LONGEST.
CHAINS, LONGEST = (1, 2, 4), 32
HOLDERS = (
    8  # devices that have a row, where machines are all equally far apart; all of them where they are not
)
MAX_PASSES = 8
SLACK = 0.03  # of stages, above the bound, in the first pass
NEAR = 0.05  # time of a near stage in the first pass, over that of all far ones
FAIR = 0.005  # above the bound, relatively; below, no further pattern is tried
TINY = 1e-9  # share of the time that a stage which is not used is allowed
WORTH = 0.002  # share of the time that a pass must take off
FAR = 1.25  # over the best plan after one pass: another pattern is tried instead
SAMPLE = 500_000  # deliveries: where there are more, patterns are tried on so many of them
EDGES = 1 << 20  # planned at a time; the time limit is looked at in between

_Edges = tuple[Int64Array, Int32Array, Int32Array, Int32Array]  # ptr, src, dst, stage


class _Work(NamedTuple):
    """What is planned: a relation over links, its classes in this order; whether it must be, be it late."""

    relation: Relation
    machines: Machines
    order: Int64Array
    deadline: float
    needed: bool


class _Found(NamedTuple):
    """A plan: its time, its trees, and per stage the smallest latency and what it takes."""

    time: float
    edges: _Edges
    waits: FloatArray
    length: FloatArray


def best_trees(
    relation: Relation,
    topology: Topology,
    options: PlanOptions,
    times: StageTimes,
    deadline: float = np.inf,
    needed: bool = False,
    beat: float = np.inf,
) -> Trees | None:
    """Return the fastest trees of all patterns tried; None if links are missing or the deadline is over.

    Trees are planned one after the other, each at the loads that all others make. On its way into a machine a row
    takes the connections and the stage that it leaves least busy, relative to the time that the stage should take:
    straight from its owner to a destination, as long as that makes no stage too long; else from another device that
    has it, or through another device of either machine. Inside the machine it goes on from where it arrived, in a
    later stage, while NICs bring the next rows. Then passes: stages are allowed a time between the bound and what they
    take, in the proportion that they take, and trees on connections that take longer are planned anew.

    Latency decides how many stages there are, and which of them are *near*: too short for a link between machines, and
    so without its latency. These patterns are tried in the order of their bounds (:mod:`dgcl.planner.bounds.stages`),
    each as long as a pass gains, until the bound of all that are left is above the best plan; where there is much to
    plan, on a part of the classes.

    Where machines are not all equally far apart, as in rings, the nearest ones are entered first, and a row comes from
    the nearest one that has it.

    Args:
        relation, topology, options: as of a planner.
        times: the bounds by stages.
        deadline: on the clock of time.process_time.
        needed: whether trees are needed even if the deadline is over.
        beat: seconds of another plan; patterns that cannot be faster are not tried.
    """
    from dgcl.planner.methods.hierarchical_kernel import Machines

    unit, arrays, machine = options.row_bytes / GIGA, topology.arrays(), machines_of(topology)
    member = np.argsort(machine, kind="stable")
    first = np.searchsorted(machine[member], np.arange(int(machine.max()) + 2))
    latency, floor, beat = arrays.link_latency / unit, times.bytes_alone / unit, beat / unit
    apart = np.full((len(first) - 1,) * 2, np.iinfo(np.int64).max)
    np.minimum.at(apart, (machine[arrays.link_src], machine[arrays.link_dst]), np.diff(arrays.link_ptr))
    np.fill_diagonal(apart, 0)
    apart = np.unique(apart, return_inverse=True)[1]
    farthest = int(apart.max())
    rank = np.argsort(np.argsort(apart, axis=1, kind="stable"), axis=1)
    machines = Machines(
        arrays.link_of, *_hops_that_count(arrays), 1.0 / arrays.bandwidth, latency, machine, first, member,
        apart, rank, HOLDERS if farthest == 1 else relation.world_size,
    )  # fmt: skip
    order = np.random.default_rng(options.seed).permutation(relation.num_classes)
    work = everything = _Work(relation, machines, order, deadline, needed)
    if (times_as_many := int(relation.num_dests().sum()) // SAMPLE) > 1:
        some = machines._replace(cost=machines.cost * times_as_many)
        work = everything._replace(machines=some, order=order[::times_as_many])
    far, near = (times.far if times.crossing else min(times.far, times.near)) / unit, times.near / unit
    between = machine[arrays.link_src] != machine[arrays.link_dst]
    latest = latency[between].max(initial=0.0)
    chains = ("f" * min(-(-farthest // step) + 1, LONGEST) for step in CHAINS)
    patterns = dict.fromkeys((*PATTERNS, *chains))
    least = {pattern: times.seconds(pattern.count("f"), pattern.count("n")) / unit for pattern in patterns}
    best: _Found | None = None
    for pattern in sorted(patterns, key=lambda pattern: least[pattern]):
        if len(pattern) >= relation.world_size or ("n" in pattern and near >= far):
            continue
        if least[pattern] >= beat or (best is not None and time.process_time() > deadline):
            break
        kinds = np.array([kind == "f" for kind in pattern])
        waits = np.where(kinds, far, near)
        room = np.where(waits < far, waits, latest)
        room += np.where(kinds, 1.0 + SLACK, NEAR) / kinds.sum() * floor
        result = _passes(work, waits, room, floor, beat)
        if result is not None and (best is None or result.time < best.time):
            best, beat = result, min(beat, result.time)
        if beat <= (1.0 + FAIR) * times.bound().seconds / unit:
            break
    if best is not None and work is not everything:  # rows of all are more even than those of some
        room = best.waits + (best.length - best.waits) * min(1.0, 0.5 + 0.5 * floor / best.time)
        best = _passes(everything, best.waits, room, floor, np.inf)
    return None if best is None else Trees(order.astype(np.int32), relation.count[order], *best.edges)


def _hops_that_count(arrays: TopologyArrays) -> tuple[Int64Array, Int32Array]:
    """Return the routes of links (pointers, directions) with the narrowest of directions that the same links use.

    The others are never busier.
    """
    limits = narrowest(arrays.link_of_hop, arrays.link_directions, arrays.bandwidth)
    hops = limits[arrays.link_directions] == arrays.link_directions
    return pointers(hops)[arrays.link_ptr], arrays.link_directions[hops]


def _passes(work: _Work, waits: FloatArray, room: FloatArray, floor: float, beat: float) -> _Found | None:
    """Plan, and plan anew what is in the way as long as that helps; None if links are missing or it is too late.

    Args:
        work: what.
        waits: (K,) smallest latency of each stage.
        room: (K,) the time that each stage should take.
        floor: time of the bytes, at least.
        beat: the time of another plan.
    """
    from dgcl.planner.methods.hierarchical_kernel import Loads

    best, edges, slowest = None, None, 0.0
    size = (work.machines.cost.shape[0], room.shape[0])
    loads = Loads(np.zeros(size), np.zeros(size), room)
    for _ in range(MAX_PASSES):
        started, before = time.process_time(), np.inf if best is None else best.time
        edges = _run_pass(work, loads, edges)
        if edges is None:
            break
        slowest = max(slowest, time.process_time() - started)
        used = np.where(loads.busy > TINY * loads.room, loads.wait + loads.busy, 0.0)
        length = np.maximum(used.max(axis=0), waits)
        reached = float(length.sum())
        if reached < before:
            best = _Found(reached, edges, waits, length)
        if time.process_time() + slowest > work.deadline or reached > (1.0 - WORTH) * before:
            break
        if min(reached, before) > FAR * beat:
            break
        taken = np.maximum(length - waits, TINY * reached)
        loads = loads._replace(room=waits + taken * min(1.0, 0.5 + 0.5 * floor / taken.sum()))
    return best


def _run_pass(work: _Work, loads: Loads, before: _Edges | None) -> _Edges | None:
    """Plan all trees, or those anew that are in the way; None if links are missing or the deadline is over."""
    from dgcl.planner.methods.hierarchical_kernel import no_tree, plan_trees

    relation, num, none = work.relation, work.order.shape[0], np.zeros(0, np.int32)
    tree, needed = no_tree(relation.world_size), work.needed and before is None
    before = (np.zeros(num + 1, np.int64), none, none, none) if before is None else before
    ptr, start = np.zeros(num + 1, np.int64), 0
    # A tree has at most a relay for each delivery. Pages that are not used take no memory.
    src, dst, stage = np.empty((3, 2 * int(relation.num_dests().sum())), np.int32)
    while start < num:
        if time.process_time() > work.deadline and not needed:
            return None
        start = plan_trees(
            work.machines, loads, tree, work.order, relation.source, relation.dests, relation.count, before,
            start, ptr, src, dst, stage, EDGES,
        )  # fmt: skip
        if start < 0:
            return None
    used = int(ptr[-1])
    return ptr, src[:used], dst[:used], stage[:used]
