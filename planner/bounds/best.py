"""Lower bounds on the seconds that any plan of a relation takes on a topology, and the largest of them.

Two kinds: the bytes that must cross a cut, over the bandwidth that they can use, plus the least latency there; and the
longest of the shortest paths of one row. Both hold for any number of stages, in the model of docs/plan-format.md
("Meta"); their proofs stand at `cut_bound` and `distance_bound`. The cuts of a topology are kept while its arrays live.
Called by `stages`, `planner/methods/registry`, `planner/verify/check_plan`,
`planner/column_generation/search/incumbent`, `dgcl/advisor/epoch` and others. Free to change while no bound is above
the best plan, found by exhaustive search, and each equals what was calculated by hand
(`tests/planner/bounds/test_best.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from dgcl.planner.array_types import FloatArray
from dgcl.planner.bounds.cuts import Cut, candidate_cuts, labels
from dgcl.planner.cost import GIGA
from dgcl.planner.reach import require_routes, require_same_size
from dgcl.planner.relation import Relation, mask_words
from dgcl.planner.trees import Bound

if TYPE_CHECKING:
    from dgcl.topology import Topology
    from dgcl.topology.arrays import TopologyArrays


@dataclass(frozen=True)
class CutTimes:
    """What the bound by cuts rests on, for every cut that was tried.

    Attributes:
        latency: (N,) seconds, the smallest of a link that crosses.
        seconds: (N,) of the bytes that must cross, without latency.
        bound: the longest of them, with its latency.
    """

    latency: FloatArray
    seconds: FloatArray
    bound: Bound


#: Of each topology the candidate cuts, and what covers them; graphs that change are planned on one again and again.
_covered: WeakKeyDictionary[TopologyArrays, tuple[list[Cut], Any, Any]] = WeakKeyDictionary()

NOTHING_TO_SEND = Bound(0.0, "nothing: no row is sent")


def best_bound(
    relation: Relation,
    topology: Topology,
    row_bytes: int,
    *others: Bound | None,
    cuts: CutTimes | None = None,
) -> Bound:
    """Return the largest of the cut bound, the distance bound and `others` (a planner's own), the first of equals.

    `cuts` are those of :func:`cut_times`, where they are known.
    """
    by_cuts = cut_bound(relation, topology, row_bytes) if cuts is None else cuts.bound
    bounds = [by_cuts, *(bound for bound in others if bound is not None)]
    best = max(bounds, key=lambda bound: bound.seconds)
    lengths = np.where(relation.pair_rows() > 0, _link_lengths(topology, row_bytes), 0.0)  # of a row, direct
    if lengths.max(initial=0.0) <= best.seconds:
        return best  # the usual case: no path is longer than the direct link of a pair, if it has one
    return max(best, distance_bound(relation, topology, row_bytes), key=lambda bound: bound.seconds)


def cut_bound(relation: Relation, topology: Topology, row_bytes: int) -> Bound:
    """Return the best bound by bytes that must cross a cut, over the capacity of the connections that they
    cross.

    Take disjoint groups of ranks. A link *crosses* if it enters a group from outside that group. Let X be
    connection-directions such that every crossing link uses at least one of them (a cover), B the sum of
    their
    bandwidths, A the smallest latency of a crossing link, and N the bytes that must enter: for each group,
    all rows that are owned outside it and needed inside it. Then every plan takes at least A + N / B.

    Proof. A tree from an owner outside a group to a destination inside it has an edge that enters the
    group, and no edge enters two groups; so crossing edges carry at least N bytes in all. Say they carry
    n(k) in stage k, and let S be the stages with n(k) > 0. Each of those bytes loads some direction of X,
    so sum over c in X of load(k, c) >= n(k), and if m(k) is the largest load(k, c) / bandwidth(c) among the
    directions in X that crossing traffic of stage k uses, then m(k) * B >= n(k). The direction where this
    maximum lies is on the route of a crossing link used in stage k, whose time is at least A + m(k). Hence
    the plan takes at least the sum over S of A + n(k) / B, which is at least A + N / B. (Half-duplex
    connections have one direction for both ways; parallel connections are separate members of X; a
    direction that no crossing link uses never needs to be in X, however wide it is.)

    Raises:
        ValueError: the relation cannot be delivered over these links at all.
    """
    require_same_size(relation.world_size, topology)
    if relation.num_classes == 0:
        return NOTHING_TO_SEND
    return cut_times(relation, topology, row_bytes).bound


def cut_times(relation: Relation, topology: Topology, row_bytes: int) -> CutTimes:
    """Return the latency and the time of the bytes of every candidate cut; the relation must not be empty.

    Raises:
        ValueError: the relation cannot be delivered over these links at all.
    """
    arrays = topology.arrays()
    if arrays not in _covered:
        from dgcl.planner.bounds.cut_kernels import covers

        cuts = candidate_cuts(topology)
        _covered[arrays] = cuts, *covers(labels(cuts, relation.world_size), arrays)
    cuts, cover, latency = _covered[arrays]
    capacity = cover @ arrays.bandwidth
    rows = _entering_rows(relation, cuts)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(rows > 0, rows * float(row_bytes) / (capacity * GIGA), 0.0)
    if np.isinf(seconds).any():
        require_routes(relation.pair_rows(), topology)
    whole = np.where(seconds > 0, latency + seconds, 0.0)
    best = int(np.argmax(whole))
    where = _describe(cuts[best], np.flatnonzero(cover[best]).tolist(), topology)
    return CutTimes(latency, seconds, Bound(float(whole[best]), where))


def _entering_rows(relation: Relation, cuts: list[Cut]) -> FloatArray:
    """Return the rows that must enter the groups of each cut, (num_cuts,) float64.

    What enters all ranks but some is what leaves those: of a set and its complement the smaller is looked at.
    """
    from dgcl.planner.bounds.cut_kernels import crossing_rows

    world = relation.world_size
    everyone = frozenset(range(world))
    smaller = {
        group: group if 2 * len(group) <= world else everyone - group for cut in cuts for group in cut.groups
    }
    index = {group: s for s, group in enumerate(dict.fromkeys(smaller.values()))}
    member = np.zeros((len(index), 64 * mask_words(world)), np.bool_)
    for group, s in index.items():
        member[s, list(group)] = True
    masks = np.packbits(member, axis=1, bitorder="little").view("<u8").astype(np.uint64)
    rows = crossing_rows(relation.source, relation.dests, relation.count, member[:, :world], masks)
    entering = {group: rows[group != small][index[small]] for group, small in smaller.items()}
    return np.array([sum(entering[group] for group in cut.groups) for cut in cuts])


def distance_bound(relation: Relation, topology: Topology, row_bytes: int) -> Bound:
    """Return the longest of the shortest paths of one row, over all pairs of ranks that need one.

    Proof. The edges on the path from a row's owner to its destination run in stages of their own, one after
    the other. Each such stage lasts at least the latency of that edge's link plus the time of this one row
    over its slowest connection. So the plan takes at least the length of the shortest path.

    Raises:
        ValueError: a pair that needs rows is not joined by any chain of links.
    """
    require_same_size(relation.world_size, topology)
    if relation.num_classes == 0:
        return NOTHING_TO_SEND
    need = relation.pair_rows()
    require_routes(need, topology)
    length = _link_lengths(topology, row_bytes)
    for via in range(relation.world_size):  # Floyd and Warshall
        np.minimum(length, length[:, via, None] + length[None, via, :], out=length)
    s, d = np.unravel_index(int(np.argmax(np.where(need > 0, length, -1.0))), need.shape)
    names = [topology.devices[r].name for r in (s, d)]
    return Bound(float(length[s, d]), f"the way of one row from {names[0]} to {names[1]}")


def _link_lengths(topology: Topology, row_bytes: int) -> FloatArray:
    """Return (P, P) the seconds of one row over each pair's link; inf without one, 0 from a rank to itself."""
    arrays = topology.arrays()
    length = np.full((topology.num_devices, topology.num_devices), np.inf)
    np.fill_diagonal(length, 0.0)
    if arrays.link_src.size:
        slowest = np.minimum.reduceat(arrays.bandwidth[arrays.link_directions], arrays.link_ptr[:-1])
        length[arrays.link_src, arrays.link_dst] = arrays.link_latency + row_bytes / (slowest * GIGA)
    return length


def _describe(cut: Cut, cover: list[int], topology: Topology) -> str:
    """Name a cut by its groups and by the kinds of connections that cover it."""
    arrays = topology.arrays()
    kinds = sorted({topology.connections[arrays.direction_connection[c]].kind for c in cover})
    owner = f"{cut.name}'" if cut.name.endswith("s") else f"{cut.name}'s"
    return f"{owner} {' + '.join(kinds)}, {cut.way}"
