"""The default: every planner that may do well here, and the cheapest of their plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dgcl.planner import direct, spst
from dgcl.planner.bounds import best_bound
from dgcl.planner.cost import direct_seconds, predicted_seconds
from dgcl.planner.plan import PlanOptions, Trees
from dgcl.planner.relation import Relation

if TYPE_CHECKING:
    from dgcl.topology import Topology


def plan(relation: Relation, topology: Topology, options: PlanOptions) -> Trees:
    """Return the cheaper of peer-to-peer (where every pair has a link) and SPST.

    Peer-to-peer is returned at once when it is within `options.gap` of the bound, as on one NVSwitch node,
    where the rows that a device must take in bound every plan alike.

    Raises:
        ValueError: a pair that needs rows cannot be reached even through relays.
    """
    bound = best_bound(relation, topology, options.row_bytes)
    seconds = direct_seconds(relation, topology, options.row_bytes)
    if seconds is not None and seconds <= bound.seconds * (1 + options.gap):
        return replace(direct.plan(relation, topology, options), bound=bound, made_by="direct")
    trees = replace(spst.plan(relation, topology, options), bound=bound, made_by="spst")
    if seconds is not None and seconds <= predicted_seconds(trees, topology.arrays(), options.row_bytes):
        return replace(direct.plan(relation, topology, options), bound=bound, made_by="direct")
    return trees
