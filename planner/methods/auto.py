"""The planning method "auto", the default: peer-to-peer if close to the lower bound, else the best found by search.

Close means within ``options.gap``. Several machines are planned machine by machine first (`hierarchical`, fast): where
that is close, or there are more than `MANY_DEVICES`, it is enough. Else column generation runs, too, as each finds
plans that the other misses: without the first, plans of 8 to 36 devices take 1.0 % longer as executed in the mean, 11
% at most.
Called by `registry` (by name) and `optimal`. Free to change while no plan is slower than peer-to-peer by the model,
and small ones are optimal (`tests/planner/column_generation/test_near_optimal.py`); executed, it is at most 1 % slower
than other methods (`tests/planner/methods/test_executed.py`).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.column_generation.search.incumbent import MANY_DEVICES, Effort, Incumbent
from dgcl.planner.column_generation.search.stage_search import StageSearch
from dgcl.planner.direct_trees import direct_trees
from dgcl.planner.methods import hierarchical, spst
from dgcl.planner.plan import Plan
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.simulator.executed import executed_seconds
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.topology import Topology

ROUGH = (
    0.1  # gap above which a plan within a time limit begins with SPST's, or is by machines however late it is
)
GREEDY_ABOVE = 0.01  # gap above which the paper's greedy is asked as well
GREEDY_DEVICES = 8  # beyond, it takes too long, unless there is little to plan:
GREEDY_STEPS = 200_000_000  # deliveries times devices times links, which take SPST a tenth of a second or two
FASTER = 0.99  # of the time as executed, which is worth more time by the model


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return a plan within `options.gap` of the proven bound where the search finds one, else the best found.

    It is never slower than peer-to-peer where every needed pair has a link. With a time limit the best plan
    so far is returned with its own gap. SPST is asked too while the gap is above `GREEDY_ABOVE`, on at most
    `GREEDY_DEVICES` devices, or where it takes at most `GREEDY_STEPS`: then a few rows travel, and rounding
    fractions of them may be worse than a greedy. On several machines, without a time limit, the simulator executes all
    these plans: one that is 1 % faster there is returned, if it is not slower than peer-to-peer by the model.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    return fastest(searched(relation, topology, options))


def fastest(best: Incumbent) -> Trees:
    """Return the best plan, or the one of several machines that was offered and is faster as executed."""
    relation, topology, options, trees = best.relation, best.topology, best.options, best.trees()
    if best.stage_times is None or relation.world_size > MANY_DEVICES or options.time_limit is not None:
        return trees
    if _is_little(relation, topology) and "spst" not in {other.made_by for other in best.offered}:
        best.offer(spst.plan(relation, topology, options), "spst")
    if best.direct_seconds is not None:
        best.offer(direct_trees(relation), "direct")

    def executed(trees: Trees) -> float:
        return executed_seconds(Plan(relation, trees, topology, {"row_bytes": options.row_bytes})) or np.inf

    seconds = [executed(each) for each in best.offered]
    if min(seconds) <= FASTER * executed(trees) < np.inf:
        return replace(best.offered[int(np.argmin(seconds))], bound=trees.bound)
    return trees


def searched(relation: Relation, topology: Topology, options: PlanOptions) -> Incumbent:
    """Return what `plan` finds, to be improved further."""
    best = Incumbent(relation, topology, options, Effort(tolerance=options.gap))
    aside = copy.copy(best)  # column generation ends with better plans where it begins with none
    if best.stage_times is not None and not best.is_good():
        _plan_by_machines(aside)
        many = relation.world_size > MANY_DEVICES and aside.seconds < np.inf
        if many or aside.is_good() or aside.is_late():
            return aside
    if relation.world_size > 2 and not best.is_good():
        greedy = _is_little(relation, topology)
        # With a time limit a rough plan comes first: the search, and what it compiles, may take all of the time.
        if greedy and options.time_limit is not None and aside.gap() > ROUGH:
            aside.offer(spst.plan(relation, topology, options), "spst")
        if not best.is_late():
            StageSearch(best).run()
        greedy = options.time_limit is None and greedy
        if best.gap() > GREEDY_ABOVE and (greedy or best.seconds == aside.seconds == np.inf):
            best.offer(spst.plan(relation, topology, options), "spst")
    if aside.seconds < best.seconds:
        trees = aside.trees()
        best.offer(trees, trees.made_by)
    return best


def _is_little(relation: Relation, topology: Topology) -> bool:
    """Tell whether SPST is quick."""
    steps = relation.deliveries * relation.world_size * topology.arrays().num_links
    return steps <= GREEDY_STEPS or relation.world_size <= GREEDY_DEVICES


def _plan_by_machines(best: Incumbent) -> None:
    """Offer the plan that enters each machine once."""
    assert best.stage_times is not None
    trees = hierarchical.best_trees(
        best.relation, best.topology, best.options, best.stage_times, best.deadline,
        needed=best.seconds == np.inf or best.gap() > ROUGH, beat=best.seconds,
    )  # fmt: skip
    if trees is not None:
        best.offer(trees, "hierarchical")
