"""The plans of both exchanges of an aggregation.

Called by `placement_strategy`. Free to change while each edge is summed once
(`tests/dgcl/placement/test_plans.py`).
"""

from dataclasses import dataclass

from dgcl.placement.exchanges import Exchanges
from dgcl.planner.fold import Fold
from dgcl.planner.plan import Plan


@dataclass(frozen=True, eq=False)
class AggregationPlan:
    """How the rows of an aggregation travel.

    Attributes:
        exchanges: What travels, and who sums which edge.
        expand: The plan of the rows that go to the ranks that sum edges.
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
