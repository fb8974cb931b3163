"""What a strategy hands in: items, who owns and who wants them, and the plan that brings them.

A *strategy* lays out an aggregation: it chooses the items, where they live, and who sums which edge. All that comes
after it is the same for every strategy: programs are compiled from an :class:`Arrangement` and proved against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.program.model import Program
from dgcl.relation.classes import ItemClasses, build_classes
from dgcl.relation.demand import Demand, Wants, halo_demand
from dgcl.relation.local_graph import LocalGraph
from dgcl.topology import Topology

#: Of a rank the ids of its owned rows, of its halo rows, and of the rows to which it contributes partial sums.
Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Planned:
    """Items that some rank wants, and the plan that brings them.

    Attributes:
        demand: Who owns, and who wants, each item.
        classes: The same, grouped.
        plan: For ``classes.relation``.
    """

    demand: Wants
    classes: ItemClasses
    plan: Plan


@dataclass(frozen=True, eq=False)
class PartialSums(Planned):
    """The second exchange of an arrangement in which edges are not all summed by the owners of their heads.

    The demand is that of vertices by the ranks that contribute partial sums to them, which travel the plan's trees
    backwards.

    Attributes:
        edges: The placement's name.
        local_graphs: Makes the local graphs of ranks from their rows, one at a time.
    """

    edges: str
    local_graphs: Callable[[Iterable[Rows]], Iterator[LocalGraph]]


@dataclass(frozen=True, eq=False)
class Arrangement(Planned):
    """What is exchanged, and how.

    Attributes:
        graph: N vertices.
        why: Why this and nothing else, for people; "" where there was no choice.
        named: Turns a rank's program and local graph into those with ids of vertices; None: items are vertices, or
            local graphs have ids of items.
        partial: Who sums which edge, and how partial sums travel; None: each owner sums the in-edges of its items.
        more: Further exchanges by name.
        grid: (parts, depth, slices), where items are slices of rows (:mod:`dgcl.grid`); None: they are vertices.
    """

    graph: Graph
    why: str = ""
    named: Callable[[Program, LocalGraph], tuple[Program, LocalGraph]] | None = None
    partial: PartialSums | None = None
    more: Mapping[str, Planned] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None


class PlanSource(Protocol):
    """Gives plans that were made before, and keeps those that are made."""

    def plan(
        self,
        part: NDArray[np.int32],
        relation: Relation,
        make: Callable[[], Plan],
        depends_on: Mapping[str, Any],
    ) -> Plan:
        """Return the plan of ``relation`` where one is stored, else the one that ``make`` makes.

        Args:
            part: ``(N,)`` owners of the vertices; a stored plan is for these alone.
            relation: What is planned.
            make: Makes the plan.
            depends_on: What the plan depends on beside graph, part, topology, method and options.
        """
        ...


class NoStore:
    """A :class:`PlanSource` that stores nothing."""

    def plan(
        self,
        part: NDArray[np.int32],
        relation: Relation,
        make: Callable[[], Plan],
        depends_on: Mapping[str, Any],
    ) -> Plan:
        """Make the plan."""
        del part, relation, depends_on
        return make()


@dataclass(frozen=True, eq=False)
class Problem:
    """What a strategy is asked to lay out.

    Attributes:
        graph: N vertices.
        part: ``(N,)`` int32, the owner of each.
        topology: The machine.
        method: What the user asks for: a planner's method, or a strategy's own.
        options: For planning.
        plans: Where plans come from.
    """

    graph: Graph
    part: NDArray[np.int32]
    topology: Topology
    method: str
    options: PlanOptions
    plans: PlanSource = NoStore()  # noqa: RUF009 (it has no state)

    @cached_property
    def demand(self) -> Demand:
        """Who wants which vertex: the owners of the heads of its out-edges."""
        return halo_demand(self.graph, self.part, self.topology.num_devices)

    @cached_property
    def classes(self) -> ItemClasses:
        """The vertices that are wanted, in classes."""
        return build_classes(self.demand)

    def plan_vertices(self, method: str | None = None) -> Arrangement:
        """Exchange the rows of vertices by a planner's method: what DGCL does.

        Raises:
            ValueError: Unknown method.
        """
        relation, name = self.classes.relation, self.method if method is None else method
        plan = self.plans.plan(
            self.part, relation, lambda: make_plan(relation, self.topology, name, self.options), {}
        )
        return Arrangement(self.demand, self.classes, plan, self.graph)


class Strategy(Protocol):
    """A way to lay out an aggregation."""

    def check(self) -> None:
        """Refuse settings that cannot be, before anything long is done.

        Raises:
            ValueError: Naming the setting.
        """
        ...

    def first_plan(self, topology: Topology, method: str) -> Mapping[str, Any]:
        """What the plan that :meth:`arrange` asks for first depends on; see :meth:`PlanSource.plan`."""
        ...

    def arrange(self, problem: Problem) -> Arrangement:
        """Decide what is exchanged, and plan it.

        Raises:
            ValueError: Unknown method, or a setting is missing.
            MemoryError: What was asked for does not fit.
        """
        ...
