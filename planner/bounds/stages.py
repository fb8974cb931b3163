"""A lower bound on plans between machines that counts the latency of every stage.

A stage is *far* if it uses a link between two machines, else *near*. Bounds by cuts and distance alone (best.py) are
below this one where latencies count: on many ranks each exchanges a few rows with each other. Its proof stands at
`stage_times`; whoever changes a formula changes the proof's case. The planner ``auto`` and the one by machines use it.
Called by `planner/column_generation/search/incumbent` and `planner/methods/hierarchical`. Free to change while it is
never above the best plan of a small cluster, found by exhaustive search, and equals what was calculated by hand
(`tests/planner/bounds/test_stages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dgcl.planner.array_types import BoolArray, FloatArray, Int64Array
from dgcl.planner.bounds.best import CutTimes, cut_times
from dgcl.planner.bounds.cuts import machines_of
from dgcl.planner.cost import GIGA, direct_seconds
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Bound

if TYPE_CHECKING:
    from dgcl.topology import Topology, TopologyArrays


class _Crossing(NamedTuple):
    """What must cross between machines, and over what: of each machine, or of each device.

    Attributes:
        rows_out: rows that it owns times other machines that need them; X of a machine.
        copies_in: deliveries to it from other machines.
        far_out, far_in, near_in: GB/s of covers of the far links out of it and into it, and of the near links to its
            devices.
    """

    rows_out: FloatArray
    copies_in: FloatArray
    far_out: FloatArray
    far_in: FloatArray
    near_in: FloatArray


@dataclass(frozen=True)
class StageTimes:
    """The bounds of the module by numbers of far and near stages, in seconds.

    Attributes:
        cuts: the bounds by cuts.
        far, near: A and L; inf without such links.
        direct: of peer-to-peer; inf where a pair that needs rows has no link.
        single: of the bytes of the far stage, if there is one only.
        two: of the bytes of both stages, if there is one of each.
        crossing: whether rows must cross between machines at all.
    """

    cuts: CutTimes
    far: float
    near: float
    direct: float
    single: float
    two: float
    crossing: bool

    @property
    def bytes_alone(self) -> float:
        """Seconds of the bytes that must cross the longest cut, without latency."""
        return float(self.cuts.seconds.max())

    def seconds(self, num_far: int, num_near: int) -> float:
        """Return what a plan of so many far and near stages takes at least."""
        if num_far + num_near == 1:
            return self.direct
        if num_far == 0 and self.crossing:
            return np.inf
        waits = np.zeros_like(self.cuts.latency)
        for number, latency in ((num_far, self.far), (num_near, self.near)):
            if number:
                waits += number * np.minimum(self.cuts.latency, latency)
        by_cuts = float(np.where(self.cuts.seconds > 0, waits + self.cuts.seconds, 0.0).max())
        if num_far != 1:
            return max(by_cuts, num_far and num_far * self.far, num_near and num_near * self.near)
        return max(by_cuts, self.far + num_near * self.near + (self.two if num_near == 1 else self.single))

    def bound(self) -> Bound:
        """Return the smallest, which no plan beats."""
        ways = {
            "1 stage": self.direct,
            "2 stages, one of them inside machines": self.seconds(1, 1),
            "3 stages, one of them between machines": self.seconds(1, 2),
            "2 stages": min(self.seconds(2, 0), self.seconds(0, 2)),
        }
        least = min(ways, key=lambda name: ways[name])
        return Bound(ways[least], f"{self.cuts.bound.where}; {least}")


def stage_times(relation: Relation, topology: Topology, row_bytes: int) -> StageTimes:
    """Return the bounds of the module; the relation must not be empty.

    Proof. Let A and L be the smallest latencies of a link between machines and inside one. A plan with c far and i
    near stages is one of four, if rows must cross at all:

    1. **c + i = 1.** Every row goes straight to each of its destinations: exactly the time of peer-to-peer.
    2. **c = 1, i = 1.** See below.
    3. **c = 1, i >= 2.** All rows leave and enter machines in one and the same stage. So a machine that has got a row
       from another one cannot send it to a third, and machine m sends each of its rows to every machine that needs it:
       X(m) rows in all, of which N(m) enter m. Let B be the bandwidth of a cover
       (:func:`dgcl.planner.bounds.best.cut_bound`) of the links out of m, or into it. The far stage takes at least A +
       X / B, or A + N / B, and each near stage at least L.
    4. **c >= 2.** For any cut whose crossing links have latencies >= a: a stage with n crossing bytes takes at least a
       + n / B, other far stages at least A, other near stages at least L. In sum c min(a, A) + i min(a, L) + N / B,
       and at least c A. This holds for 2 and 3, too.

    With c = i = 1 there are two orders.

    - **Near, then far.** Nothing is passed on after the far stage. So every destination on another machine is entered
      by a far link: 3 holds with deliveries in place of rows, and for each device, too.
    - **Far, then near.** Nothing is passed on before the far stage. So owners send themselves, and 3 holds with the
      rows that each device sends to other machines. A destination gets a row from another machine by a far link, or by
      a near one in the near stage: for a device or machine with D such deliveries, x and y the times of the two stages
      without latencies, and B and V the bandwidths of covers of the far and near links into it, B x + V y >= D. With x
      >= x0 from above, x + y >= x0 + max(0, D - B x0) / V if B <= V, and else >= max(x0, D / B).

    The bound is the smallest of the four.

    Raises:
        ValueError: the relation cannot be delivered over these links at all.
    """
    cuts = cut_times(relation, topology, row_bytes)
    arrays, machine, unit = topology.arrays(), machines_of(topology), row_bytes / GIGA
    far = machine[arrays.link_src] != machine[arrays.link_dst]
    rows, narrow = _rows_by_machine(relation, machine), _narrowest(arrays)
    copies = np.where(machine[:, None] == machine, 0, relation.pair_rows()).astype(np.float64)

    def crossing(of: Int64Array) -> _Crossing:
        src, dst, num = of[arrays.link_src], of[arrays.link_dst], int(of.max()) + 1
        return _Crossing(
            _totals(of, rows.sum(axis=1)),
            _totals(of, copies.sum(axis=0)),
            _cover(arrays, narrow, far, src, num),
            _cover(arrays, narrow, far, dst, num),
            _cover(arrays, narrow, ~far, dst, num),
        )

    machines, devices = crossing(machine), crossing(np.arange(relation.world_size))
    single = unit * max(_most(machines.rows_out, machines.far_out), _most(rows.sum(axis=0), machines.far_in))
    near_then_far = unit * max(
        _most(_totals(machine, copies.sum(axis=1)), machines.far_out),
        _most(machines.copies_in, machines.far_in),
        _most(devices.copies_in, devices.far_in),
    )
    two = min(near_then_far, _far_then_near(machines, devices, unit, single))  # without latencies
    direct = direct_seconds(relation, topology, row_bytes)
    return StageTimes(
        cuts,
        float(arrays.link_latency[far].min(initial=np.inf)),
        float(arrays.link_latency[~far].min(initial=np.inf)),
        np.inf if direct is None else direct,
        single,
        two,
        bool(rows.any()),
    )


def _far_then_near(machines: _Crossing, devices: _Crossing, unit: float, single: float) -> float:
    """Return the seconds without latencies of a far stage and a near one; `single` is a bound on the far one."""
    first = max(single / unit, _most(devices.rows_out, devices.far_out))
    least = first
    for each in (machines, devices):
        some = each.copies_in > 0
        copies, far, near = each.copies_in[some], each.far_in[some], each.near_in[some]
        with np.errstate(divide="ignore", invalid="ignore"):  # without near links, or without far ones
            wide = first + np.maximum(0.0, copies - far * first) / near
            narrow = np.maximum(first, copies / far)
        both = np.where(far <= near, wide, narrow)
        least = max(least, float(both.max(initial=0.0)))
    return unit * least


def _most(rows: FloatArray, bandwidth: FloatArray) -> float:
    """Return the largest rows / bandwidth, inf where rows have no way."""
    some = rows > 0
    with np.errstate(divide="ignore"):
        return float((rows[some] / bandwidth[some]).max(initial=0.0))


def _totals(group: Int64Array, values: FloatArray) -> FloatArray:
    """Return the sum of the values of each group."""
    return np.asarray(np.bincount(group, weights=values), np.float64)


def _rows_by_machine(relation: Relation, machine: Int64Array) -> FloatArray:
    """Return how many rows each rank owns that each other machine needs, (P, M)."""
    from dgcl.planner.bounds.stage_kernels import add_rows_by_machine

    num = int(machine.max()) + 1
    rows = np.zeros((machine.shape[0], num))
    add_rows_by_machine(relation.source, relation.dests, relation.count, machine, rows, np.full(num, -1))
    rows[np.arange(machine.shape[0]), machine] = 0.0
    return rows


def _narrowest(arrays: TopologyArrays) -> Int64Array:
    """Return the narrowest direction of each link, (2, L): the first of equals, and the last."""
    width, link_of_hop = arrays.bandwidth[arrays.link_directions], arrays.link_of_hop
    narrow = np.flatnonzero(width == np.minimum.reduceat(width, arrays.link_ptr[:-1])[link_of_hop])
    first, last = found = np.empty((2, arrays.num_links), np.int64)
    first[link_of_hop[narrow[::-1]]] = arrays.link_directions[narrow[::-1]]
    last[link_of_hop[narrow]] = arrays.link_directions[narrow]
    return found


def _cover(
    arrays: TopologyArrays, narrow: Int64Array, links: BoolArray, group: Int64Array, num: int
) -> FloatArray:
    """Return the GB/s of the narrowest connections of those of these links that are of each of `num` groups."""
    sums = []
    for direction in narrow:
        used = np.zeros((num, arrays.num_directions), np.bool_)
        used[group[links], direction[links]] = True
        sums.append(used @ arrays.bandwidth)
    return np.minimum(*sums)
