"""Both exchanges of an aggregation on a grid, planned, and what an aggregation is predicted to take.

Called by `grid_strategy`. Free to change while sums are those of one device (`tests/dgcl/grid/`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dgcl.grid.items import ItemDemand, expand_demand, fold_demand
from dgcl.grid.needs import Needs
from dgcl.planner.fold import Fold, reverse_plan
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.planning_options import PlanOptions
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.program.strategy import Planned
from dgcl.relation.classes import ItemClasses
from dgcl.topology import Topology


@dataclass(frozen=True, eq=False)
class GridPlan:
    """How slices of rows travel.

    Attributes:
        needs: Who reads and who sums which vertex.
        expand: The items that go to those that sum edges.
        folded: Those whose trees the partial sums travel backwards.
        fold: These trees turned round: cost and bound.
    """

    needs: Needs
    expand: Planned
    folded: Planned
    fold: Fold

    @property
    def exchange_seconds(self) -> float:
        """Predicted seconds of both exchanges of an aggregation, one after the other."""
        return self.expand.plan.predicted_seconds + self.fold.predicted_seconds

    @property
    def bound_seconds(self) -> float:
        """No exchanges of these items take less."""
        return self.expand.plan.lower_bound_seconds + self.fold.bound.seconds


#: Gives the plan of classes by the name of their exchange, or makes it by what it is given.
PlanOfClasses = Callable[[ItemClasses, str, Callable[[], Plan]], Plan]


def plan_grid(
    needs: Needs,
    topology: Topology,
    method: str = "auto",
    options: PlanOptions | None = None,
    source: PlanOfClasses | None = None,
) -> GridPlan:
    """Plan both exchanges of a grid by a planner's method; each is verified and has its bound.

    Args:
        needs: Of the graph in its parts.
        topology, method, options: As for :func:`dgcl.planner.make_plan`; bytes are those of a whole row.
        source: Where plans come from; None: all are made.

    Raises:
        ValueError: An unknown method, or ranks that no chain of links joins.
        NoWayBackError: Partial sums would travel over a link that has none the other way.
    """
    arguments = (topology, method, options or PlanOptions(), source)
    expand = plan_items(expand_demand(needs), HALO, *arguments)
    folded = plan_items(fold_demand(needs), PARTIAL, *arguments)
    return GridPlan(needs, expand, folded, reverse_plan(folded.plan))


def plan_items(
    demand: ItemDemand,
    exchange: str,
    topology: Topology,
    method: str,
    options: PlanOptions,
    source: PlanOfClasses | None = None,
) -> Planned:
    """Plan one exchange of slices; arguments and errors as of :func:`plan_grid`."""
    of_slices = replace(options, row_bytes=demand.grid.slice_width(options.row_bytes))
    classes = demand.classes()

    def make() -> Plan:
        return make_plan(classes.relation, topology, method, of_slices)

    return Planned(classes, make() if source is None else source(classes, exchange, make))
