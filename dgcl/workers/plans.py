"""The plans of both exchanges of an aggregation, and the choice of the fastest placement of its edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgcl.planner.fold import Fold, reverse_plan
from dgcl.planner.methods import make_plan
from dgcl.planner.options import PlanOptions
from dgcl.planner.plan import Plan
from dgcl.workers.exchanges import Exchanges

if TYPE_CHECKING:
    from dgcl.topology import Topology

__all__ = ["AggregationPlan", "fastest", "plan_exchanges"]


@dataclass(frozen=True, eq=False)
class AggregationPlan:
    """How the rows of an aggregation travel.

    Attributes:
        exchanges: What travels, and who sums which edge.
        expand: The plan of the rows that go to workers.
        folded: The plan whose trees the partial sums travel backwards.
        fold: Those trees turned round: its cost, and its bound.
    """

    exchanges: Exchanges
    expand: Plan
    folded: Plan
    fold: Fold

    @property
    def exchange_seconds(self) -> float:
        """Predicted seconds of both exchanges, one after the other."""
        return self.expand.predicted_seconds + self.fold.predicted_seconds

    def seconds(self, edge_seconds: float = 0.0) -> float:
        """Predicted seconds of an aggregation: both exchanges, and the sums of the fullest worker.

        Args:
            edge_seconds: What an edge takes that is summed.
        """
        return self.exchange_seconds + edge_seconds * int(self.exchanges.edges.max(initial=0))


def plan_exchanges(
    exchanges: Exchanges, topology: Topology, method: str = "auto", options: PlanOptions | None = None
) -> AggregationPlan:
    """Plan both exchanges of an aggregation by a planner's method; each is verified and has its bound.

    Raises:
        ValueError: An unknown method, or ranks that no chain of links joins.
        NoWayBackError: Partial sums would travel over a link that has none the other way.
    """
    options = options or PlanOptions()
    expand = make_plan(exchanges.expand.relation, topology, method, options)
    folded = make_plan(exchanges.fold.relation, topology, method, options)
    return AggregationPlan(exchanges, expand, folded, reverse_plan(folded))


def fastest(plans: Mapping[str, AggregationPlan], edge_seconds: float = 0.0) -> str:
    """The name of the plan that is predicted fastest; the first of those that are equally fast."""
    return min(plans, key=lambda name: plans[name].seconds(edge_seconds))
