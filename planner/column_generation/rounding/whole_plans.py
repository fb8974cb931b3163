"""A fractional plan to trees of whole rows: rounded, dealt to the vertices of the classes, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.column_generation.rounding.assembly import assemble
from dgcl.planner.column_generation.rounding.decomposition import deal, settle
from dgcl.planner.column_generation.rounding.whole_flows import whole_flows
from dgcl.planner.trees import Trees

if TYPE_CHECKING:
    from dgcl.planner.column_generation.pricing.flows import Flows
    from dgcl.planner.column_generation.pricing.states import StateSpace
    from dgcl.planner.relation import Relation
    from dgcl.topology.arrays import TopologyArrays


def whole_trees(flows: Flows, space: StateSpace, relation: Relation, arrays: TopologyArrays) -> Trees:
    """Return trees for all classes whose rows take the options of all states nearly as `flows` say."""
    num_links = arrays.link_src.shape[0]
    whole = whole_flows(space.family, space.moves, space.rows, flows, num_links)
    settled = settle(space.family, space.moves, flows, whole)
    journeys = deal(
        space.family, space.moves, flows, whole, space.items.ptr, space.item_set, relation.source,
        relation.count, num_links, settled,
    )  # fmt: skip
    return assemble(journeys, settled, space, relation, arrays)
