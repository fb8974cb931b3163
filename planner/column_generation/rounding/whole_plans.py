"""Turns a fractional plan into trees of whole rows: rounding, flow decomposition, assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.column_generation.rounding.assembly import assemble
from dgcl.planner.column_generation.rounding.decomposition import decompose, find_forced_states
from dgcl.planner.column_generation.rounding.whole_flows import whole_flows
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.pricing.flows import Flows
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


def whole_trees(flows: Flows, space: StateSpace, relation: Relation, arrays: TopologyArrays) -> Trees:
    """Return trees for all classes that follow `flows` up to the rounding to whole rows."""
    num_links = arrays.link_src.shape[0]
    whole = whole_flows(space.family, space.moves, space.rows, flows, num_links)
    forced = find_forced_states(space.family, space.moves, flows, whole)
    interval_hops = decompose(
        space.family, space.moves, flows, whole, space.items.ptr, space.item_set, relation.source,
        relation.count, num_links, forced,
    )  # fmt: skip
    return assemble(interval_hops, forced, space, relation, arrays)
