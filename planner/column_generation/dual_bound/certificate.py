"""Combines bounds from prices into one bound over all numbers of stages, with latencies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.arrays import FloatArray, IntArray
from dgcl.planner.column_generation.dual_bound.price_bound import STEPS, PriceBound, price_bound
from dgcl.planner.column_generation.pricing.groups import is_exact
from dgcl.planner.column_generation.pricing.routes import latency_factor
from dgcl.planner.cost import GIGA
from dgcl.planner.trees import Bound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology import Topology

MAX_NODES = 11
_NAMED = 3  # connection-directions named in the text of a bound
_PROBE_ROUNDS = 60  # rounds in the short search of a group
_PROBE_SHARE = 0.6  # of the best bound: a group that reaches it is searched thoroughly


def stage_free_bound(
    relation: Relation,
    topology: Topology,
    space: StateSpace,
    factor: FloatArray,
    aim: float,
    known: float,
    tolerance: float,
    deadline: float,
    steps: int = STEPS,
) -> PriceBound:
    """Return the price bound in rows per GB/s, with devices as nodes, or past a dozen with groups as nodes.

    The other arguments are those of `price_bound`.
    """
    nodes = np.arange(relation.world_size) if is_exact(relation) else _groups_as_nodes(space)
    return price_bound(
        relation, topology.arrays(), nodes, factor=factor, aim=aim, known=known, tolerance=tolerance,
        deadline=deadline, steps=steps,
    )  # fmt: skip


def bound_within_groups(
    relation: Relation,
    topology: Topology,
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
    arrays = topology.arrays()
    for group in space.groups:
        if group.shape[0] >= MAX_NODES or time.perf_counter() > deadline:
            continue
        nodes = np.full(relation.world_size, group.shape[0])
        nodes[group] = np.arange(group.shape[0])
        aim = best.value or proven
        probe = price_bound(
            relation, arrays, nodes, factor=factor, aim=aim, rounds=_PROBE_ROUNDS, steps=0, deadline=deadline
        )
        if probe.value >= _PROBE_SHARE * aim:
            found = price_bound(
                relation, arrays, nodes, factor=factor, aim=aim, known=best.value, tolerance=tolerance,
                deadline=deadline,
            )  # fmt: skip
            best = max(best, found, key=lambda bound: bound.value)
    return best


def _groups_as_nodes(space: StateSpace) -> IntArray:
    nodes = np.empty(space.world_size, np.int64)
    for g, group in enumerate(space.groups):
        nodes[group] = min(g, MAX_NODES - 1)
    return nodes


def bound_over_stages(
    stage_free: PriceBound,
    staged: Mapping[int, float],
    direct_seconds: float | None,
    known_seconds: float,
    topology: Topology,
    world_size: int,
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
        for j in range(2, world_size)
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
    shown = [arrays.direction_name(int(c)) for c in order[:_NAMED] if stage_free.weight[c] > 0.01]
    many = int((stage_free.weight > 0.01).sum())
    more = f" and {many - len(shown)} more" if many > len(shown) else ""
    return f"prices on {', '.join(shown)}{more}"
