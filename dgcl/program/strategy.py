"""Interface of strategies: the problem that each is given, and the arrangement that it returns.

A *strategy* lays out an aggregation: it chooses the items that travel (vertices, or slices of their rows), who owns
them, who sums which edge, and the plan that brings them. All that comes after it is the same for every strategy: a
rank's share is made from an :class:`Arrangement`.
Called by `dgcl/build`, `dgcl/prepare/shares`, `dgcl/grid/grid_strategy`, `dgcl/placement/placement_strategy`,
`dgcl/advisor/auto_strategy` and others. Free to change while the plans of an arrangement bring what its edges need
(`tests/dgcl/placement/test_plans.py`), and a stored plan is found again (`tests/dgcl/grid/test_layers.py`).
"""

from collections.abc import Callable, Mapping
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
from dgcl.relation.classes import ItemClasses, halo_classes
from dgcl.relation.local_graph import RankEdges, edges_into
from dgcl.topology import Topology


@dataclass(frozen=True, eq=False)
class Planned:
    """Items that some rank wants, and the plan that brings them.

    Attributes:
        classes: Who owns, and who wants, each item.
        plan: For ``classes.relation``.
    """

    classes: ItemClasses
    plan: Plan


@dataclass(frozen=True, eq=False)
class Arrangement(Planned):
    """What is exchanged, and how.

    Attributes:
        edges_of: The edges that a rank sums.
        why: Why this and nothing else, for people; "" where there was no choice.
        placement: What a communicator calls the placement of edges.
        partial: The second exchange, where edges are not all summed by the owners of their heads: vertices by the ranks
            that contribute partial sums to them, which travel the plan's trees backwards.
        more: Further exchanges by name.
        grid: (parts, depth, slices), where items are slices of rows (:mod:`dgcl.grid`); None: they are vertices.
    """

    edges_of: Callable[[int], RankEdges]
    why: str = ""
    placement: str = "head"
    partial: Planned | None = None
    more: Mapping[str, Planned] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """What a strategy is asked to lay out.

    Attributes:
        graph: N vertices.
        part: ``(N,)`` int32, the owner of each.
        topology: The machine.
        method: What the user asks for: a planner's method, or a strategy's own.
        options: For planning.
        source: Gives plans that were made before, and keeps those that are made, by owners of vertices, relation, what
            makes a plan, and what that depends on beside the problem; None: all are made.
    """

    graph: Graph
    part: NDArray[np.int32]
    topology: Topology
    method: str
    options: PlanOptions
    source: Callable[..., Plan] | None = None

    @cached_property
    def classes(self) -> ItemClasses:
        """The vertices that the owners of their out-edges' heads want, in classes."""
        return halo_classes(self.graph, self.part, self.topology.num_devices)

    def edges_of(self, rank: int) -> RankEdges:
        """The in-edges of a rank's vertices."""
        return edges_into(self.graph, np.flatnonzero(self.part == rank))

    def plan(self, relation: Relation, **depends_on: Any) -> Plan:
        """The plan of ``relation`` where one is stored, else a new one.

        Args:
            relation: What is planned.
            depends_on: What the plan depends on beside the problem.

        Raises:
            ValueError: Unknown method.
        """

        def make() -> Plan:
            return make_plan(relation, self.topology, self.method, self.options)

        return make() if self.source is None else self.source(self.part, relation, make, depends_on)

    def plan_vertices(self) -> Arrangement:
        """Exchange the rows of vertices by a planner's method: what DGCL does.

        Raises:
            ValueError: Unknown method.
        """
        return Arrangement(self.classes, self.plan(self.classes.relation), self.edges_of)


class Strategy(Protocol):
    """A way to lay out an aggregation; settings that cannot be are refused when it is made."""

    def first_plan(self) -> Mapping[str, Any]:
        """What the plan that :meth:`arrange` asks for first depends on; see :meth:`Problem.plan`."""
        ...

    def arrange(self, problem: Problem) -> Arrangement:
        """Decide what is exchanged, and plan it.

        Raises:
            ValueError: Unknown method, or a setting is missing.
            MemoryError: What was asked for does not fit.
        """
        ...
