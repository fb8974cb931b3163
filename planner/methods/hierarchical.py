"""Plans clusters machine by machine, for hundreds of ranks: a row enters each machine once, and is passed on inside.

Trees are planned one after the other, each at the loads that all others make. On its way into a machine a row takes
the connections and the stage that it leaves least busy, relative to the time that the stage should take: straight from
its owner to a destination, as long as that makes no stage too long; else through another device of the owner's machine
(whose NIC is free), from a third machine that has the row already, or to a device of the machine that does not need it.
Inside the machine it goes on from where it arrived, in a later stage, while NICs bring the next rows.

Then passes: stages are allowed a time between the bound and what they take, in the proportion that they take, and trees
on connections that take longer are planned anew.

Latency decides how many stages there are, and which of them are *near*: too short for a link between machines, and so
without its latency. These patterns are tried in the order of their bounds (:mod:`dgcl.planner.bounds.stages`), each as
long as a pass gains, until the bound of all that are left is above the best plan. Where there is much to plan they are
tried on a part of the classes, drawn by `seed`, and what the best one would take is an estimate; all are planned with
its times of stages. Time grows with edges, not with pairs of ranks and sets of ranks; nothing is assumed of the network
between machines.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.bounds.stages import StageTimes, machines_of, stage_times
from dgcl.planner.column_generation.trees.seconds import trees_seconds
from dgcl.planner.cost import GIGA
from dgcl.planner.options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Connection, Device, Topology

if TYPE_CHECKING:
    from dgcl.planner.methods.hierarchical_kernel import Machines
    from dgcl.topology import TopologyArrays

PATTERNS = ("ffff", "fff", "ff", "fn", "nfn", "ffn", "ffffff")  # f: a far stage, n: a near one
MAX_PASSES, SAMPLE_PASSES = 8, 3
SLACK = 0.03  # of stages, above the bound, in the first pass
NEAR = 0.05  # time of a near stage in the first pass, over that of all far ones
FAIR = 0.005  # above the bound, relatively; below, no further pattern is tried
TINY = 1e-9  # share of the time that a stage which is not used is allowed
WORTH = 0.002  # share of the time that a pass must take off
FAR = 1.25  # over the best plan after one pass: another pattern is tried instead
MANY = 2_000_000  # deliveries: beyond, patterns are tried on SAMPLE of them, and at most MOST passes are over all
SAMPLE, MOST = 800_000, 2
UNEVEN = 0.04  # what a plan of a sample takes longer, relatively: its rows are less even
TRIED = 0.1  # of the trees of a pass; then it is given up if at this pace it would end too late
EDGES = 1 << 20  # planned at a time; the time limit is looked at in between

_Edges = tuple[Int64Array, Int32Array, Int32Array, Int32Array]  # ptr, src, dst, stage


@dataclass(frozen=True)
class _Work:
    """What is planned. Times are in rows per GB/s.

    Attributes:
        relation, machines: what must be delivered, and by which links.
        order: the classes to plan.
        far, near: smallest latency of a link between machines, and inside one.
        floor: time of the bytes of all classes, at least.
        share: of the classes that `order` has.
        needed: whether a plan is needed even if the deadline is over.
    """

    relation: Relation
    machines: Machines
    order: Int64Array
    far: float
    near: float
    floor: float
    share: float
    needed: bool


@dataclass(frozen=True)
class _Found:
    """A plan.

    Attributes:
        length, latency: (K,) time of each stage, and its part that does not grow with the bytes.
        edges: of its trees.
        slowest: seconds of the slowest pass.
    """

    length: FloatArray
    latency: FloatArray
    edges: _Edges
    slowest: float

    def whole(self, share: float) -> float:
        """The time that a plan of all classes would take, if this is one of a share of them."""
        latency = float(self.latency.sum())
        return latency + (float(self.length.sum()) - latency) / share


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

    Args:
        relation, topology, options: as of a planner.
        times: the bounds by stages.
        deadline: on the clock of time.perf_counter.
        needed: whether trees are needed even if the deadline is over.
        beat: seconds of another plan; patterns that cannot be faster are not tried.
    """
    unit = options.row_bytes / GIGA
    order = np.random.default_rng(options.seed).permutation(relation.num_classes)
    deliveries = int(relation.num_dests().sum())
    share = SAMPLE / deliveries if deliveries > MANY else 1.0
    far = times.far if times.crossing else min(times.far, times.near)
    work = _Work(
        relation, _machines(topology, unit), order[: max(1, round(share * order.shape[0]))], far / unit,
        times.near / unit, times.bytes_alone / unit, share, needed,
    )  # fmt: skip
    best = _best_pattern(work, times, unit, deadline, beat / unit)
    if best is None:
        return None
    if share < 1.0:
        taken = best.length - best.latency
        ratio = taken.sum() / share / work.floor
        room = best.latency + taken / taken.sum() * work.floor * max(1.0 + SLACK, 0.5 + 0.5 * ratio)
        work = replace(work, order=order, share=1.0)
        best = _passes(work, best.latency, room, MOST, np.inf, deadline)
        if best is None:
            return None
    return Trees(work.order.astype(np.int32), relation.count[work.order], *best.edges)


@functools.cache
def prepare() -> None:
    """Load or compile what :func:`best_trees` and its bounds call, by a small plan, before a time limit counts."""
    machine = Topology(
        "two machines",
        tuple(Device(f"d{i}", machine=i // 2) for i in range(4)),
        tuple(Connection(f"{a}{b}", "wire", f"d{a}", f"d{b}", 1.0) for a in range(4) for b in range(a)),
    )
    relation = Relation.from_classes(4, [(0, {1, 2, 3}, 1), (2, {0}, 1)])
    options = PlanOptions()
    trees = best_trees(relation, machine, options, stage_times(relation, machine, options.row_bytes))
    assert trees is not None
    trees_seconds(trees, machine.arrays(), options.row_bytes)
    verify_trees(relation, trees, machine)


def _best_pattern(work: _Work, times: StageTimes, unit: float, deadline: float, beat: float) -> _Found | None:
    """Return the plan of the fastest pattern."""
    least = {pattern: times.seconds(pattern.count("f"), pattern.count("n")) / unit for pattern in PATTERNS}
    best = None
    for pattern in sorted(PATTERNS, key=lambda pattern: least[pattern]):
        num_stages, num_far = len(pattern), pattern.count("f")
        if num_stages >= work.relation.world_size or ("n" in pattern and work.near >= work.far):
            continue
        if least[pattern] >= beat or (best is not None and time.perf_counter() > deadline):
            break
        latency = np.array([work.far if kind == "f" else work.near for kind in pattern])
        bytes_alone = np.array(
            [(1.0 + SLACK) / num_far if kind == "f" else NEAR / num_far for kind in pattern]
        )
        room = latency + bytes_alone * work.floor * work.share
        found = _passes(
            work, latency, room, MAX_PASSES if work.share == 1.0 else SAMPLE_PASSES, beat, deadline
        )
        if found is None:
            continue
        if best is None or found.whole(work.share) < best.whole(work.share):
            best = found
            beat = min(beat, best.whole(work.share) / (1.0 if work.share == 1.0 else 1.0 + UNEVEN))
        if beat <= (1.0 + FAIR) * times.bound().seconds / unit:
            break
    return best


def _passes(
    work: _Work, latency: FloatArray, room: FloatArray, most: int, beat: float, deadline: float
) -> _Found | None:
    """Plan, and plan anew what is in the way as long as that helps; None if links are missing or it is too late.

    Args:
        work: what.
        latency, room: (K,) of each stage, and the time that it should take.
        most: passes.
        beat: the time of another plan, of all classes.
        deadline: no further pass begins if it would end later, with a whole plan where this is a sample.
    """
    from dgcl.planner.methods.hierarchical_kernel import Loads, stage_lengths

    best, edges, slowest = None, None, 0.0
    busy = np.zeros((work.machines.inverse.shape[0], room.shape[0]))
    floor = work.floor * work.share
    for _ in range(most):
        started = time.perf_counter()
        found = _run_pass(work, busy, room, edges, np.inf if best is None and work.needed else deadline)
        if found is None:
            break
        edges = found
        now = time.perf_counter()
        slowest = max(slowest, now - started)
        length = np.maximum(stage_lengths(work.machines, Loads(busy, room), *edges[1:]), latency)
        before = np.inf if best is None else float(best.length.sum())
        if best is None or length.sum() < before:
            best = _Found(length, latency, edges, slowest)
        ahead = slowest / work.share if work.share < 1.0 else 0.0
        if now + slowest + ahead > deadline or length.sum() > (1.0 - WORTH) * before:
            break
        if best.whole(work.share) > FAR * beat:
            break
        taken = np.maximum(length - latency, TINY * length.sum())
        room = latency + taken * min(1.0, 0.5 + 0.5 * floor / taken.sum())
    return best


def _run_pass(
    work: _Work, busy: FloatArray, room: FloatArray, before: _Edges | None, deadline: float
) -> _Edges | None:
    """Plan all trees, or those anew that are in the way; None if links are missing or the deadline is over."""
    from dgcl.planner.methods.hierarchical_kernel import Loads, no_tree, plan_trees

    relation, num, none = work.relation, work.order.shape[0], np.zeros(0, np.int32)
    size, start, parts = np.zeros(num, np.int64), 0, []
    tree = no_tree(relation.world_size)
    before = (np.zeros(num + 1, np.int64), none, none, none) if before is None else before
    begun = time.perf_counter()
    while start < num:
        now = time.perf_counter()
        if max(now, begun + (now - begun) * num / start if start > num * TRIED else now) > deadline:
            return None
        src, dst, stage = np.empty((3, EDGES + 3 * relation.world_size), np.int32)
        end = plan_trees(
            work.machines, Loads(busy, room), tree, work.order, relation.source, relation.dests, relation.count, before,
            start, size, src, dst, stage,
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

    arrays, machine = topology.arrays(), machines_of(topology)
    member = np.argsort(machine, kind="stable")
    first = np.searchsorted(machine[member], np.arange(int(machine.max()) + 2))
    ptr, directions = _without_dominated(arrays)
    return Machines(
        arrays.link_of, ptr, directions, arrays.link_latency / unit, 1.0 / arrays.bandwidth,
        machine, first.astype(np.int64), member.astype(np.int64),
    )  # fmt: skip


def _without_dominated(arrays: TopologyArrays) -> tuple[Int64Array, Int32Array]:
    """Return `link_ptr` and `link_directions` with one direction, the narrowest, of those that the same links use.

    The others are never busier. Sums of numbers drawn for the links tell which links use a direction.
    """
    link_of_hop = np.repeat(np.arange(arrays.num_links), np.diff(arrays.link_ptr))
    drawn = np.random.default_rng(0).random(arrays.num_links)
    users = np.bincount(arrays.link_directions, weights=drawn[link_of_hop], minlength=arrays.num_directions)
    order = np.lexsort((arrays.bandwidth, users))
    kept = np.zeros(arrays.num_directions, np.bool_)
    kept[order[np.flatnonzero(np.diff(users[order], prepend=-1.0))]] = True
    hops = kept[arrays.link_directions]
    sizes = np.bincount(link_of_hop[hops], minlength=arrays.num_links)
    return np.concatenate([[0], np.cumsum(sizes)]), arrays.link_directions[hops]
