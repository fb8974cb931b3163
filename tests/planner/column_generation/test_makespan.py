"""The smoothed makespan of a plan and the best amounts to move, against the formula written out in numpy."""

import numpy as np
import pytest

from dgcl.planner.column_generation.improvement.makespan import (
    LinkUses,
    best_amount,
    recompute,
    smooth_makespan,
)
from dgcl.planner.column_generation.master.fractional import Problem
from dgcl.planner.column_generation.pricing.device_groups import plan_states
from dgcl.planner.column_generation.pricing.flows import Routes
from dgcl.planner.column_generation.rounding.forest import forest_from_trees
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Trees
from dgcl.topology import Topology
from dgcl.topology.arrays import TopologyArrays
from tests.support.samples import named
from tests.support.small_machines import small_topology, switched

STAGES = 2
WIRES = [(0, 1, 2.0), (1, 2, 1.0), (2, 3, 4.0), (3, 0, 1.5), (0, 2, 0.7)]


def problem_of(topology: Topology) -> tuple[Relation, Problem]:
    arrays = topology.arrays()
    relation = Relation.from_classes(4, [(0, {1}, 30), (0, {2}, 40), (1, {2}, 25), (3, {2}, 60)])
    ones = np.ones(arrays.link_src.shape[0])
    routes = Routes(arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, ones, 0.0 * ones)
    return relation, Problem(plan_states(relation, topology), routes, 0.0)


def smooth_time(rows: np.ndarray, arrays: TopologyArrays, beta: np.ndarray) -> float:  # type: ignore[type-arg]
    """The definition at the head of makespan.py; rows (K, L)."""
    total = 0.0
    for k in range(rows.shape[0]):
        busy = np.zeros(arrays.bandwidth.shape[0])
        for link, many in enumerate(rows[k]):
            for c in arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]:
                busy[c] += many / arrays.bandwidth[c]
        total += np.log(1.0 + np.expm1(beta[k] * busy).sum()) / beta[k]
    return float(total)


@pytest.mark.parametrize("seed", range(12))
@named("topology", {"wires": small_topology(4, WIRES), "ports": switched(4, 1.0)})
def test_the_best_amount_is_the_best_of_the_halves(topology: Topology, seed: int):
    """Through ports, the first rows of a move into an idle stage cost more than the later ones: not convex."""
    arrays, (relation, problem) = topology.arrays(), problem_of(topology)
    rng = np.random.default_rng(seed)
    trees = Trees(
        np.arange(4, dtype=np.int32), relation.count, np.arange(5), relation.source,
        np.array([1, 2, 2, 2], np.int32), rng.integers(0, STAGES, 4).astype(np.int32),
    )  # fmt: skip
    forest = forest_from_trees(trees, arrays)
    smooth = smooth_makespan(problem, STAGES, forest)
    beta = rng.uniform(0.02, 0.3, STAGES)
    recompute(smooth, problem.routes, beta)
    rows = smooth.rows.copy()
    t = int(rng.integers(0, 4))
    old_link, old_stage = forest.link[forest.first[t]], forest.stage[forest.first[t]]
    link = np.array([rng.integers(0, arrays.link_src.shape[0]), old_link], np.int32)
    stage, sign = np.array([rng.integers(0, STAGES), old_stage], np.int32), np.array([1, -1])
    uses = LinkUses(link, stage, sign, np.empty(64, np.int64), np.zeros(smooth.busy.shape))
    most, hops = int(forest.count[t]), 0.01 * float(rng.random())
    found = best_amount(smooth, problem.routes, uses, 2, most, hops, beta)

    gains = {0: 0.0}
    many = most
    while many:
        moved = rows.astype(np.float64)
        for e in range(2):
            moved[stage[e], link[e]] += sign[e] * many
        gains[many] = hops * many + smooth_time(moved, arrays, beta) - smooth_time(rows, arrays, beta)
        many //= 2
    assert gains[found] <= min(gains.values()) + 1e-9
    assert (smooth.rows == rows).all()
