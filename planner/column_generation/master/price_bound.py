"""Lower bounds from prices of connections: no plan, of any number of stages, pays less than the cheapest trees.

Every price vector gives a valid bound, so nothing depends on how well the search for the best one converges, nor on the
linear program's tolerances. That search is fractional.py's (multiplicative weights, then column generation) with one
price vector instead of one per stage. `price_bound` has the theorem and its proof; `bound_over_stages` combines such
bounds into one over all numbers of stages, with latencies.
Called by `planner/column_generation/search/incumbent`, and for its number of steps by
`planner/column_generation/search/stage_search`. Free to change while no bound is above the true optimum, and bounds
equal those calculated by hand (`tests/planner/column_generation/test_price_bound.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import FloatArray, Int64Array, pointers, ranges
from dgcl.planner.column_generation.master.fractional import soft_weights
from dgcl.planner.column_generation.master.restricted_master import Columns, solve_master
from dgcl.planner.column_generation.pricing.flows import Routes, latency_factor
from dgcl.planner.column_generation.pricing.states import CLASSES_AT_A_TIME, build_family
from dgcl.planner.column_generation.pricing.steiner_trees import FreeLinks, FreeProblem, free_answer
from dgcl.planner.cost import GIGA
from dgcl.planner.trees import Bound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology
    from dgcl.topology.arrays import TopologyArrays

ROUNDS, SAMPLES = 300, 30
STEPS = 40
STEP = 2.0
BLENDS = (0.2, 0.4, 0.6, 0.8)
MAX_NODES = 11
_NAMED = 3  # connection-directions named in the text of a bound
_PROBE_ROUNDS = 60  # rounds in the short search of a group
_PROBE_SHARE = 0.6  # of the best bound: a group that reaches it is searched thoroughly
_FLOOR = 1e-12  # of a weight: keeps every price positive, so that shortest paths have no cycles


@dataclass(frozen=True, eq=False)
class PriceBound:
    """A bound and the prices that prove it.

    Attributes:
        value: rows per GB/s; times row_bytes / 1e9 it is seconds.
        weight: (C,) >= 0, adding up to 1: bandwidth(c) * y(c).
    """

    value: float
    weight: FloatArray


def price_bound(
    relation: Relation,
    arrays: TopologyArrays,
    node_of: Int64Array,
    *,
    factor: FloatArray,
    aim: float,
    known: float = 0.0,
    tolerance: float = 1e-4,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    deadline: float = np.inf,
) -> PriceBound:
    """Search for the best prices of the contracted problem.

    Theorem. Let y(c) >= 0 be prices on connection-directions with sum over c of bandwidth(c) * y(c) = 1, and let
    price(link) be the sum of y over the directions of its route. For each class take the price of a cheapest tree from
    its source to its destinations. Then no plan is faster than the sum over classes of count * row_bytes * that price.

    Proof. Let load(k, c) be the loads of any plan and T(k) the time of its stage k, so load(k, c) <= bandwidth(c) *
    T(k). Summed with the prices: sum over k, c of y(c) * load(k, c) <= (sum over c of y(c) * bandwidth(c)) * (sum over
    k of T(k)), which is the plan's time. The left side is what all its trees pay: each byte over a link pays for every
    direction of the route. No tree pays less than a cheapest one. QED. (Latencies only add to T(k), and where they
    matter rows count by the factor of their link: `flows.latency_factor` has the proof of load(k, c) <= bandwidth(c) *
    T(k) with rows so weighted. A half-duplex connection has one direction that both ways load; parallel connections
    have prices of their own.)

    Contraction. The theorem holds with devices merged into nodes: drop from every tree the edges inside a node and
    what remains still joins the source's node to all destinations' nodes, and costs at most as much. So a small graph
    of nodes gives a valid bound for a machine of any size: one machine's devices with all others merged, say, or the
    machines as nodes.

    Args:
        relation: what must be delivered.
        arrays: the machine.
        node_of: (P,) node of each device, 0..N-1; N up to about 12.
        factor: (L,) latency factors of the links (`latency_factor`); the bound holds for plans whose stages are as
            short as these assume, with ones for all plans.
        aim: a rough idea of the bound, rows per GB/s, > 0; only the speed of the search depends on it.
        known: a bound from elsewhere: stop when no prices can prove noticeably more.
        tolerance: relative; stop when the bound is this near to the best that prices can prove.
        rounds: of multiplicative weights.
        steps: largest number of linear programs.
        deadline: on the clock of time.process_time.
    """
    quotient = _contract(relation, arrays, np.asarray(node_of, np.int64), factor)
    num_directions, nodes = arrays.num_directions, quotient.start.shape[0]
    assert (factor >= 1.0).all()
    if not quotient.start.any():
        return PriceBound(0.0, np.full(num_directions, 1.0 / max(1, num_directions)))
    best, best_weight = 0.0, np.full(num_directions, 1.0 / num_directions)
    every = rounds // SAMPLES // 2 * 2 + 1  # odd: answers often alternate between two
    score, samples = np.zeros((1, num_directions)), []
    for t in range(rounds):
        weight, times = soft_weights(score)[0], np.zeros((nodes, num_directions))
        value = free_answer(quotient, weight, times)
        if best < value < np.inf:
            best, best_weight = value, weight
        if t % every == every - 1:
            samples.append(times)
            if time.process_time() > deadline:
                break
        score += STEP / aim / np.sqrt(t + 1.0) * times.sum(axis=0)
    if (
        best == 0.0
    ):  # no prices make it finite: some destination is out of reach over links with finite factors
        return PriceBound(np.inf, best_weight)
    columns, solution = _columns(np.array(samples)), None
    for _ in range(steps):
        if time.process_time() > deadline:
            break
        solution = solve_master(columns, nodes, 0.0, solution)
        if solution.time <= max(best, known) * (1.0 + tolerance):
            break
        center = best_weight
        for blend in BLENDS:
            weight = blend * center + (1.0 - blend) * solution.weight[0] + _FLOOR
            weight /= weight.sum()
            kept = np.empty((1, nodes, num_directions))
            value = free_answer(quotient, weight, kept[0])
            if value > best:
                best, best_weight = value, weight
            columns = columns.joined(_columns(kept))
    return PriceBound(best, best_weight)


def _columns(kept: FloatArray) -> Columns:
    """Return answers (n, N, C) as columns of one stage, one block per node."""
    num, nodes, num_directions = kept.shape
    block = np.tile(np.arange(nodes), num)
    return Columns(kept.reshape(num * nodes, 1, num_directions), np.zeros(num * nodes), block, block)


def _contract(
    relation: Relation, arrays: TopologyArrays, node_of: Int64Array, factor: FloatArray
) -> FreeProblem:
    """Merge devices into nodes."""
    nodes = int(node_of.max()) + 1
    rows = np.zeros((nodes, 1 << nodes))
    holds = np.eye(nodes, dtype=np.bool_)[node_of]
    for first in range(0, relation.num_classes, CLASSES_AT_A_TIME):
        part = slice(first, first + CLASSES_AT_A_TIME)
        home = node_of[relation.source[part]]
        mask = relation.dest_matrix(part.start, part.stop) @ holds @ (1 << np.arange(nodes))
        np.add.at(rows, (home, mask & ~(1 << home)), relation.count[part])
    rows[:, 0] = 0.0  # what stays in its node
    family = build_family([np.arange(nodes)], [np.flatnonzero(rows.any(axis=0))])
    src, dst = node_of[arrays.link_src], node_of[arrays.link_dst]
    crossing = np.flatnonzero(src != dst)
    lengths = np.diff(arrays.link_ptr)[crossing]
    ptr, directions = pointers(lengths), arrays.link_directions[ranges(arrays.link_ptr[crossing], lengths)]
    # Read-only as the topology's, for which kernels are compiled.
    ptr.flags.writeable = directions.flags.writeable = False
    no_price = np.zeros(crossing.shape[0])
    routes = Routes(ptr, directions, 1.0 / arrays.bandwidth, factor[crossing], no_price)
    return FreeProblem(family, FreeLinks(src[crossing], dst[crossing]), routes, rows[:, family.set_mask])


def stage_free_nodes(space: StateSpace) -> Int64Array:
    """Return the nodes of the bound on all plans: each device by itself, or past a dozen each group as one."""
    if space.is_exact:
        return np.arange(space.world_size)
    return np.minimum(space.family.group_of, MAX_NODES - 1)


def bound_within_groups(
    space: StateSpace,
    factor: FloatArray,
    best: PriceBound,
    proven: float,
    tolerance: float,
    deadline: float,
) -> PriceBound:
    """Return the best of `best` and the bounds inside each group, with all other devices as one node.

    A group is searched thoroughly only where a short search comes near `best`; or near `proven`, a bound from
    elsewhere, where `best` is 0 because no row leaves its group.
    """
    for group in space.groups:
        if group.shape[0] >= MAX_NODES or time.process_time() > deadline:
            continue
        nodes = np.full(space.world_size, group.shape[0])
        nodes[group] = np.arange(group.shape[0])
        aim = best.value or proven
        search = partial(
            price_bound, space.relation, space.arrays, nodes, factor=factor, aim=aim, deadline=deadline
        )
        if search(rounds=_PROBE_ROUNDS, steps=0).value >= _PROBE_SHARE * aim:
            inner = search(known=best.value, tolerance=tolerance)
            best = max(best, inner, key=lambda bound: bound.value)
    return best


def bound_over_stages(
    stage_free: PriceBound,
    staged: Mapping[int, float],
    direct_seconds: float | None,
    known_seconds: float,
    topology: Topology,
    row_bytes: int,
) -> Bound:
    """Return the bound on plans of any number of stages, from bounds for each number.

    Let A be the smallest latency of a link, and Z = `known_seconds` the time of some plan. In rows per
    GB/s, `stage_free` bounds the sum over stages of T(k) - A for plans of any number of stages, and ``staged[K]``
    for plans of at most K, where stages take T(k) - A <= Z - 2 A (`excess_factor`). Then no plan takes less
    than Z, or than the minimum over j = 1 .. world_size - 1 of

    - direct_seconds for j = 1 (more than any plan where some pair has no link);
    - j * A + the larger of `stage_free` and of ``staged[K]`` for all K >= j, in seconds, for j >= 2.

    Proof. Take a plan faster than Z and let j be its number of stages in which anything is sent (empty ones
    take no time and may be dropped). If j = 1 every row goes straight to its destinations in that stage:
    the plan is peer-to-peer and takes direct_seconds. Otherwise each of the j stages takes at least A, so
    none takes more than Z - (j - 1) A, and T(k) - A <= Z - 2 A. The sum of T(k) - A is what `stage_free` bounds,
    and ``staged[K]`` if j <= K.
    """
    unit = row_bytes / GIGA
    least = float(topology.arrays().link_latency.min(initial=np.inf))
    values = [np.inf if direct_seconds is None else direct_seconds]
    values += [
        j * least + unit * max([stage_free.value, *(b for k, b in staged.items() if k >= j)])
        for j in range(2, topology.num_devices)
    ]
    return Bound(float(min(known_seconds, *values)), _describe(stage_free, topology))


def excess_factor(topology: Topology, known_seconds: float) -> FloatArray:
    """Return the latency factors of links for what stages take beyond the smallest latency; see `bound_over_stages`.

    With A and Z as there: a stage in which link l is used and direction c on its route is busy for a time b
    has T(k) - A >= (latency(l) - A) + b, so `latency_factor` applies to latencies less A and stage times of
    at most Z - 2 A.
    """
    latency = topology.arrays().link_latency
    least = float(latency.min(initial=np.inf))
    room = known_seconds - 2.0 * least
    if not (latency > least).any() or not 0.0 < room < np.inf:
        return np.ones(latency.shape[0])
    return latency_factor(latency - least, room)


def _describe(stage_free: PriceBound, topology: Topology) -> str:
    """Name the connection-directions with the largest prices."""
    arrays = topology.arrays()
    order = np.argsort(-stage_free.weight, kind="stable")
    shown = [arrays.direction_names[c] for c in order[:_NAMED] if stage_free.weight[c] > 0.01]
    many = int((stage_free.weight > 0.01).sum())
    more = f" and {many - len(shown)} more" if many > len(shown) else ""
    return f"prices on {', '.join(shown)}{more}"
