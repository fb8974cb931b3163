"""The default: peer-to-peer where that is as good as proven, else the best plan by prices, with a
certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.plan import PlanOptions, Trees
from dgcl.planner.prices.effort import Effort
from dgcl.planner.prices.incumbent import Incumbent
from dgcl.planner.prices.search import StageSearch
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology

GREEDY_ABOVE = 0.01  # gap above which the paper's greedy is asked as well
GREEDY_DEVICES = 8  # beyond, it takes too long


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return a plan within `options.gap` of the proven bound where the search finds one, else the best found.

    It is never slower than peer-to-peer where every needed pair has a link. With a time limit the best plan
    so far is returned with its own gap. SPST is asked too, on at most `GREEDY_DEVICES` devices, while the
    gap is above `GREEDY_ABOVE`.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    return searched(relation, topology, options).trees()


def searched(relation: Relation, topology: Topology, options: PlanOptions) -> Incumbent:
    """Return what `plan` finds, to be improved further."""
    found = Incumbent(relation, topology, options, Effort(tolerance=options.gap))
    if relation.world_size > 2 and not found.is_good():
        StageSearch(found).run()
        if found.gap() > GREEDY_ABOVE and relation.world_size <= GREEDY_DEVICES and not found.is_late():
            from dgcl.planner.methods import spst

            found.offer(spst.plan(relation, topology, options), "spst")
    return found
