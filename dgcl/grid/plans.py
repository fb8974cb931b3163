"""Both exchanges of an aggregation on a grid, planned, and what an aggregation is predicted to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dgcl.grid.counts import Counts, count_needs
from dgcl.grid.items import ItemDemand, expand_demand, fold_demand
from dgcl.grid.needs import Needs
from dgcl.planner.bounds.best import best_bound
from dgcl.planner.fold import Fold, reverse_plan, transpose
from dgcl.planner.methods import make_plan
from dgcl.planner.options import PlanOptions
from dgcl.planner.plan import Plan
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.program.strategy import Planned
from dgcl.relation.classes import ItemClasses
from dgcl.topology import Topology

__all__ = ["EdgeSeconds", "GridPlan", "PlanOfClasses", "bound_of_grid", "plan_grid", "plan_items"]


@dataclass(frozen=True)
class EdgeSeconds:
    """Seconds of summing an edge: narrow slices are slower for each byte than whole rows.

    Attributes:
        fixed: Whatever the width is.
        per_byte: Of the row, or of its slice.
    """

    fixed: float = 0.0
    per_byte: float = 0.0

    @classmethod
    def through(cls, wide: tuple[int, float], narrow: tuple[int, float]) -> EdgeSeconds:
        """The line through two measurements, (bytes of a row, seconds of an edge) each."""
        if wide[0] == narrow[0]:
            return cls(0.0, wide[1] / wide[0])
        per_byte = max(0.0, (wide[1] - narrow[1]) / (wide[0] - narrow[0]))
        return cls(max(0.0, narrow[1] - per_byte * narrow[0]), per_byte)

    def at(self, row_bytes: int) -> float:
        """For rows, or slices, of so many bytes."""
        return self.fixed + self.per_byte * row_bytes


@dataclass(frozen=True, eq=False)
class GridPlan:
    """How slices of rows travel.

    Attributes:
        needs: Who reads and who sums which vertex.
        counts: What each rank receives and sums.
        expand: The items that go to those that sum edges.
        folded: Those whose trees the partial sums travel backwards.
        fold: These trees turned round: cost and bound.
    """

    needs: Needs
    counts: Counts
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

    def seconds(self, work: EdgeSeconds) -> float:
        """Predicted seconds of an aggregation: both exchanges, and the sums of the fullest rank."""
        return self.exchange_seconds + int(self.counts.edges.max()) * work.at(self.expand.plan.row_bytes)


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
    return GridPlan(needs, count_needs(needs), expand, folded, reverse_plan(folded.plan))


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


def bound_of_grid(needs: Needs, topology: Topology, options: PlanOptions) -> float:
    """Seconds that no plan of both exchanges can beat."""
    row_bytes = needs.grid.slice_width(options.row_bytes)
    expand, fold = (demand(needs).classes().relation for demand in (expand_demand, fold_demand))
    turned = transpose(topology)
    return best_bound(expand, topology, row_bytes).seconds + best_bound(fold, turned, row_bytes).seconds
