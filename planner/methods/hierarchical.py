"""Plans clusters machine by machine, for hundreds of ranks: a row enters each machine once, and is passed on inside.

Trees are planned one after the other, each at the loads that all others make. On its way into a machine a row takes
the connections and the stage that it leaves least busy, relative to the time that the stage should take: straight from
its owner to a destination, as long as that makes no stage too long; else through another device of the owner's machine
(whose NIC is free), from a third machine that has the row already, or to a device of the machine that does not need it.
Inside the machine it goes on from where it arrived, in a later stage, while NICs bring the next rows.

Then passes: stages are allowed a time between the bound and what they take, in the proportion that they take, and trees
on connections that take longer are planned anew.

Where machines are not all on one switch, as in rings, the nearest ones are entered first, and a row comes from the
nearest one that has it: it goes on from machine to machine, where there is a stage for each step. With fewer stages, in
longer steps: first to machines that are a multiple of these apart from its owner's, then to the others.

Latency decides how many stages there are, and which of them are *near*: too short for a link between machines, and so
without its latency. These patterns are tried in the order of their bounds (:mod:`dgcl.planner.bounds.stages`), each as
long as a pass gains, until the bound of all that are left is above the best plan. Where there is much to plan they are
tried on a part of every owner's classes, drawn by `seed`. How far a plan of these is above their own bound tells what
one of all classes would take; all are planned with the best one's times of stages, nearer to the bound. Time grows with
edges, not with pairs of ranks and sets of ranks; nothing is assumed of the network between machines.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, Int32Array, Int64Array
from dgcl.planner.bounds.best import bytes_seconds
from dgcl.planner.bounds.stages import StageTimes, stage_times
from dgcl.planner.cost import GIGA
from dgcl.planner.methods.hierarchical_links import Machines, machine_links
from dgcl.planner.options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Connection, Device, Topology

if TYPE_CHECKING:
    from dgcl.planner.methods.hierarchical_kernel import Loads

PATTERNS = ("ffff", "fff", "ff", "fn", "nfn", "ffn", "ffffff")  # f: a far stage, n: a near one
MAX_PASSES = 8  # one over a sample
SLACK = 0.03  # of stages, above the bound, in the first pass
TIGHT = 0.01  # the same where a sample has told how long each stage should be
NEAR = 0.05  # time of a near stage in the first pass, over that of all far ones
# Steps from machine to machine; for each a pattern of as many far stages as that takes, or LONGEST.
CHAINS, LONGEST = (1, 2, 4), 32
FAIR = 0.005  # above the bound, relatively; below, no further pattern is tried
TINY = 1e-9  # share of the time that a stage which is not used is allowed
WORTH = 0.002  # share of the time that a pass must take off
FAR = 1.25  # over the best plan after one pass: another pattern is tried instead
MANY = 2_000_000  # deliveries: beyond, patterns are tried on SAMPLE of them, and at most MOST passes are over all
SAMPLE, MOST = 500_000, 2
UNEVEN = 0.02  # what a plan of a sample takes longer, relatively: its rows are less even
TRIED = 0.1  # of the trees of a pass but the first; then it is given up if at this pace it would end too late
BLIND = 0.5  # what a tree takes that is planned without a look at loads, over one with; at most
FOLLOWED = 8  # times in a pass that stages get the proportions that they turn out to take; more often, chance decides
EDGES = 1 << 20  # planned at a time; the time limit is looked at in between

_Edges = tuple[Int64Array, Int32Array, Int32Array, Int32Array]  # ptr, src, dst, stage


@dataclass(frozen=True)
class _Work:
    """What is planned. Times are in rows per GB/s.

    Attributes:
        relation, machines: what must be delivered, and by which links.
        order: the classes, in the order in which they are planned.
        far, near: smallest latency of a link between machines, and inside one.
        farthest: largest latency of a link between machines.
        floor: time of the bytes, at least.
        share: of the deliveries that these are.
        needed: whether a plan is needed even if the deadline is over.
        follow: whether the first pass gives stages the proportions that they turn out to take.
    """

    relation: Relation
    machines: Machines
    order: Int64Array
    far: float
    near: float
    farthest: float
    floor: float
    share: float
    needed: bool
    follow: bool = False

    @functools.cached_property
    def deliveries(self) -> int:
        """Edges of trees that enter nothing but destinations."""
        return int(self.relation.num_dests().sum())


@dataclass(frozen=True)
class _Found:
    """A plan.

    Attributes:
        pattern: of its K stages.
        length: (K,) time of each stage.
        edges: of its trees.
        slowest: seconds of the slowest pass.
    """

    pattern: str
    length: FloatArray
    edges: _Edges
    slowest: float


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
        deadline: on the clock of time.process_time.
        needed: whether trees are needed even if the deadline is over.
        beat: seconds of another plan; patterns that cannot be faster are not tried.
    """
    unit = options.row_bytes / GIGA
    draw = np.random.default_rng(options.seed)
    far = times.far if times.crossing else min(times.far, times.near)
    machines = machine_links(topology, unit)
    apart = machines.machine_of[:, None] != machines.machine_of
    everything = _Work(
        relation, machines, draw.permutation(relation.num_classes), far / unit, times.near / unit,
        machines.latency[apart].max(initial=0.0), times.bytes_alone / unit, 1.0, needed,
    )  # fmt: skip
    work = everything
    if work.deliveries > MANY:
        work = _sample(everything, times, options.row_bytes, draw)
    best = _best_pattern(work, times, unit, deadline, beat / unit)
    if best is None:
        return None
    if work is not everything:
        latency = _latency(work, best.pattern)
        taken = best.length - latency
        slack = max(1.0 + TIGHT, 0.5 + 0.5 * taken.sum() / work.floor)
        room = latency + taken / taken.sum() * work.floor * slack
        best = _passes(replace(everything, follow=True), best.pattern, room, MOST, np.inf, deadline)
        if best is None:
            return None
    return _by_class(relation, everything.order, best.edges)


def _sample(work: _Work, times: StageTimes, row_bytes: int, draw: np.random.Generator) -> _Work:
    """Return a part of the classes, every so many of each owner's, over links that are as much slower.

    How much that is tells the bound of what they send.
    """
    relation, share = work.relation, SAMPLE / work.deliveries
    size = max(1, round(share * relation.num_classes))
    some = ((np.arange(size) + draw.random()) / size * relation.num_classes).astype(np.int64)
    part = Relation(relation.world_size, relation.source[some], relation.dests[some], relation.count[some])
    floor = (
        float(bytes_seconds(part, row_bytes, times.cuts.cuts, times.cuts.capacity).max()) * GIGA / row_bytes
    )
    machines = work.machines._replace(inverse=work.machines.inverse * (work.floor / floor))
    order = draw.permutation(size)
    return replace(work, relation=part, machines=machines, order=order, share=share, follow=True)


def _by_class(relation: Relation, order: Int64Array, edges: _Edges) -> Trees:
    """Return one tree for each class, in the order of the classes."""
    from dgcl.planner.tree_kernels import reorder

    old_ptr, position = edges[0], np.argsort(order)
    ptr = np.concatenate([[0], np.cumsum(np.diff(old_ptr)[position])])
    src, dst, stage = (np.empty_like(values) for values in edges[1:])
    for old, new in zip(edges[1:], (src, dst, stage), strict=True):
        reorder(position, old_ptr, old, ptr, new)
    return Trees(np.arange(relation.num_classes, dtype=np.int32), relation.count, ptr, src, dst, stage)


@functools.cache
def prepare() -> None:
    """Load or compile what :func:`best_trees` and its bounds call, by a small plan, before a time limit counts."""
    from dgcl.planner.tree_kernels import add_link_rows

    machine = Topology(
        "two machines",
        tuple(Device(f"d{i}", machine=i // 2) for i in range(4)),
        tuple(Connection(f"{a}{b}", "wire", f"d{a}", f"d{b}", 1.0) for a in range(4) for b in range(a)),
    )
    relation = Relation.from_classes(4, [(0, {1, 2, 3}, 1), (2, {0}, 1)])
    options = PlanOptions()
    trees = best_trees(relation, machine, options, stage_times(relation, machine, options.row_bytes))
    assert trees is not None
    arrays, rows = machine.arrays(), np.zeros((trees.num_stages, machine.arrays().num_links))
    edges = trees.edge_src, trees.edge_dst, trees.edge_stage
    add_link_rows(trees.tree_count, trees.edge_ptr, *edges, arrays.link_of, rows)
    verify_trees(relation, trees, machine)


def _best_pattern(work: _Work, times: StageTimes, unit: float, deadline: float, beat: float) -> _Found | None:
    """Return the plan of the fastest pattern."""
    farthest = int(work.machines.apart.max())
    chains = ("f" * min(-(-farthest // step) + 1, LONGEST) for step in CHAINS)
    patterns = dict.fromkeys((*PATTERNS, *chains))
    least = {pattern: times.seconds(pattern.count("f"), pattern.count("n")) / unit for pattern in patterns}
    best = None
    for pattern in sorted(patterns, key=lambda pattern: least[pattern]):
        num_stages, num_far = len(pattern), pattern.count("f")
        if num_stages >= work.relation.world_size or ("n" in pattern and work.near >= work.far):
            continue
        if least[pattern] >= beat:
            break
        if best is not None and time.process_time() + BLIND * best.slowest / work.share > deadline:
            break
        latency = _latency(work, pattern)
        bytes_alone = np.array(
            [(1.0 + SLACK) / num_far if kind == "f" else NEAR / num_far for kind in pattern]
        )
        room = np.where(latency < work.far, latency, work.farthest) + bytes_alone * work.floor
        result = _passes(work, pattern, room, MAX_PASSES if work.share == 1.0 else 1, beat, deadline)
        if result is None:
            continue
        if best is None or result.length.sum() < best.length.sum():
            best = result
            beat = min(beat, best.length.sum() / (1.0 if work.share == 1.0 else 1.0 + UNEVEN))
        if beat <= (1.0 + FAIR) * times.bound().seconds / unit:
            break
    return best


def _latency(work: _Work, pattern: str) -> FloatArray:
    """The smallest latency of each stage."""
    return np.array([work.far if kind == "f" else work.near for kind in pattern])


def _passes(
    work: _Work, pattern: str, room: FloatArray, most: int, beat: float, deadline: float
) -> _Found | None:
    """Plan, and plan anew what is in the way as long as that helps; None if links are missing or it is too late.

    Args:
        work: what.
        pattern: of the stages.
        room: (K,) the time that each stage should take.
        most: passes.
        beat: the time of another plan.
        deadline: no further pass begins if it would end later, with a whole plan where this is a sample.
    """
    from dgcl.planner.methods.hierarchical_kernel import Loads

    best, edges, slowest, latency = None, None, 0.0, _latency(work, pattern)
    machines = work.machines
    step = -(-machines.apart.max() // max(1, pattern.count("f") - 1))
    order = np.lexsort((machines.apart, machines.apart % step != 0))
    work = replace(work, machines=machines._replace(step=step, order=order))
    size = (work.machines.inverse.shape[0], room.shape[0])
    loads = Loads(np.zeros(size), np.zeros(size), room)
    for _ in range(most):
        started = time.process_time()
        result = _run_pass(work, loads, edges, deadline, latency)
        if result is None:
            break
        edges = result
        now = time.process_time()
        slowest = max(slowest, now - started)
        used = np.where(loads.busy > TINY * loads.room, loads.wait + loads.busy, 0.0)
        length = np.maximum(used.max(axis=0), latency)
        before = np.inf if best is None else best.length.sum()
        if best is None or length.sum() < before:
            best = _Found(pattern, length, edges, slowest)
        ahead = slowest / work.share if work.share < 1.0 else 0.0
        if now + slowest + ahead > deadline or length.sum() > (1.0 - WORTH) * before:
            break
        if best.length.sum() > FAR * beat:
            break
        taken = np.maximum(length - latency, TINY * length.sum())
        loads = loads._replace(room=latency + taken * min(1.0, 0.5 + 0.5 * work.floor / taken.sum()))
    return best


def _run_pass(
    work: _Work, loads: Loads, before: _Edges | None, deadline: float, latency: FloatArray
) -> _Edges | None:
    """Plan all trees, or those anew that are in the way; None if links are missing or the deadline is over.

    If all would be ready too late, the last ones are planned without a look at loads.

    Where that is to be followed, rooms become in proportion to what is taken so far, `FOLLOWED` times, besides the
    latency of each stage. Links may have larger ones than `latency`, and a room that is smaller shuts them out: those
    of near stages do not shrink, and those of far ones not below the largest latency between machines.
    """
    from dgcl.planner.methods.hierarchical_kernel import no_tree, plan_trees

    relation, num, none = work.relation, work.order.shape[0], np.zeros(0, np.int32)
    tree, again = no_tree(relation.world_size), before is not None
    before = (np.zeros(num + 1, np.int64), none, none, none) if before is None else before
    ptr = np.zeros(num + 1, np.int64)
    src, dst, stage = np.empty((3, 3 * work.deliveries), np.int32)  # pages that are not used take no memory
    piece = min(EDGES, 1 + work.deliveries // FOLLOWED)
    start, begun, blindly, due = 0, time.process_time(), False, num / FOLLOWED
    least = np.where(latency < work.far, loads.room, (1.0 + TIGHT) * work.farthest)
    while start < num:
        left, passed = deadline - time.process_time(), time.process_time() - begun
        rest = passed * (num - start) / start if start else 0.0  # at this pace
        if again and (left < 0.0 or (start > num * TRIED and rest > left)):
            return None
        if not again and not blindly:
            if 0.5 * BLIND * rest > left and not work.needed:
                return None
            blindly = BLIND * rest > left
        start = plan_trees(
            work.machines, loads, tree, work.order, relation.source, relation.dests, relation.count, before,
            start, ptr, src, dst, stage, piece, blindly,
        )  # fmt: skip
        if start < 0:
            return None
        if work.follow and not again and due <= start < num:
            due += num / FOLLOWED
            taken = np.maximum(loads.busy.max(axis=0), TINY * work.floor)
            room = np.maximum(latency, loads.wait.max(axis=0))
            room += taken / taken.sum() * work.floor * (1.0 + TIGHT)
            loads.room[:] = np.maximum(room, least)
    used = int(ptr[-1])
    return ptr, src[:used], dst[:used], stage[:used]
