"""Improves a whole plan by exchanges of trees, from a soft makespan to a sharp one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.column_generation.improvement.exchange import EVERY_TREE, exchange
from dgcl.planner.column_generation.improvement.instance import class_instance
from dgcl.planner.column_generation.improvement.makespan import load, recompute, smooth_makespan
from dgcl.planner.column_generation.pricing.tree_program import empty_choices
from dgcl.planner.column_generation.trees.forest import compact, forest_from_trees, trees_from_forest
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays

SCHEDULES = (  # of beta times the time of one row; each starts from the best plan of those before
    (8.0, 32.0, 128.0, 512.0),
    (4.0, 16.0, 64.0, 256.0),
    (2.0, 8.0, 32.0, 128.0, 512.0),
    (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
    (1.0, 4.0, 16.0, 64.0, 256.0),
    (0.25, 1.0, 4.0, 16.0, 64.0, 256.0),
)
PASSES = 8  # price updates at each sharpness
FEW_TREES = 1500  # up to which every schedule is tried; of more rows each is worth less
PACE = 0.1  # of the time above `enough`: with more trees, a schedule that takes off less is no progress


def improve(
    trees: Trees,
    problem: Problem,
    relation: Relation,
    arrays: TopologyArrays,
    num_stages: int,
    *,
    enough: float,
    latency_unit: float,
    thorough: bool = False,
    deadline: float = np.inf,
) -> Trees:
    """Exchange trees for better ones; the result is never slower than `trees`.

    Args:
        trees: a plan of at most `num_stages` stages.
        problem, relation, arrays: what it was made from.
        num_stages: stages that may be used.
        enough: stop when the plan takes no longer than this, in rows per GB/s.
        latency_unit: rows per GB/s in a second (1e9 / row_bytes), to bring latencies into that unit.
        thorough: try every schedule, forwards and backwards, again and again while that helps; for many
            trees, while it helps at a good pace.
        deadline: on the clock of time.perf_counter.
    """
    if trees.num_trees == 0:
        return trees
    instance, routes = class_instance(problem, relation, arrays), problem.routes
    forest = forest_from_trees(trees, arrays)
    smooth = smooth_makespan(arrays, num_stages, latency_unit, forest)
    choices = empty_choices(num_stages, problem.space.world_size, problem.space.num_sets)
    unit = float(np.median(routes.cost[arrays.link_directions]))  # time of a row on a usual direction
    best_time = first_time = recompute(smooth, routes, np.full(num_stages, 1.0 / unit))
    best = compact(forest)
    few = trees.num_trees <= FEW_TREES
    number = (2 * len(SCHEDULES) if thorough else len(SCHEDULES)) if few else 3 if thorough else 1
    at = since = 0
    while best_time > enough and since < number and (thorough or at < number):
        forest, before = compact(best), best_time
        load(smooth, forest)
        since += 1
        for sharpness in SCHEDULES[(at // 2 if thorough else at) % len(SCHEDULES)]:
            if best_time <= enough or time.perf_counter() > deadline:
                break
            passes = PASSES if few or thorough else PASSES // 2
            beta = np.full(num_stages, sharpness / unit)
            backwards = at % 2 == 1
            reached = exchange(
                instance, choices, forest, smooth, beta, enough, passes, 0, EVERY_TREE, backwards
            )
            forest = compact(forest)
            if reached < best_time * (1.0 - 1e-9):
                best_time, best = reached, compact(forest)
        if before - best_time > (0.0 if few else PACE * (before - enough)):
            since = 0
        at += 1
    return trees_from_forest(best, arrays) if best_time < first_time else trees
