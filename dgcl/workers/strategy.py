"""The strategy that places edges: plans both exchanges for one placement, or for all and takes the fastest."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from dgcl.planner.fold import NoWayBackError, reverse_plan
from dgcl.planner.methods import make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.reading.render import seconds
from dgcl.program.strategy import Arrangement, Planned, Problem
from dgcl.relation.classes import ItemClasses
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice, check_flag, shown
from dgcl.workers.edges import edges_of_worker
from dgcl.workers.exchanges import EDGES, Exchanges, exchanges_of, workers_of
from dgcl.workers.plans import AggregationPlan, fastest

__all__ = ["EdgePlacement"]

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class EdgePlacement:
    """Sums edges where ``edges`` says; a :class:`~dgcl.program.strategy.Strategy`.

    Attributes:
        edges: "head", "tail", "cover"; or "auto": what is predicted fastest, both exchanges and the sums of the rank
            that has most edges (of those whose partial sums have a way back over the links).
        imbalance: For "cover": no rank sums more than this times the mean number of edges, as far as sums at the head
            allow; None: no bound.
        per_machine: For "cover": covers of pairs of machines instead of pairs of ranks; within a machine edges are
            summed at their heads.
        edge_seconds: What an edge takes that is summed, for "auto".
    """

    edges: str = "head"
    imbalance: float | None = None
    per_machine: bool = False
    edge_seconds: float = 0.0

    def check(self) -> None:
        """Refuse settings that cannot be.

        Raises:
            ValueError: Naming the setting.
        """
        check_choice(self.edges, "edges", ("auto", *EDGES))
        bound = self.imbalance
        if bound is not None and (not isinstance(bound, Real) or isinstance(bound, bool) or not bound >= 1):
            raise ValueError(f"imbalance must be at least 1, the mean, or None (got {shown(bound)})")
        check_flag(self.per_machine, "per_machine")

    def first_plan(self, topology: Topology, method: str) -> Mapping[str, Any]:
        """What the plan of rows depends on: the placement, but for "head", whose plan is the ordinary one."""
        del topology, method
        return self._depends_on("head" if self.edges == "auto" else self.edges, "halo")

    def arrange(self, problem: Problem) -> Arrangement:
        """Plan both exchanges.

        Raises:
            ValueError: Unknown method, or a rank would sum 2**31 edges or more.
            NoWayBackError: Partial sums would travel over a link that has none the other way.
        """
        if self.edges != "auto":
            return self.lay_out(problem, self.edges, "" if self.edges == "head" else "{} was asked for: {}")
        plans = self._all_planned(problem)
        chosen = fastest(plans, self.edge_seconds)
        others = "; ".join(
            f"with {edges!r} {self._line(plan)}" for edges, plan in plans.items() if edges != chosen
        )
        return self.lay_out(problem, chosen, "auto chose {}: {}; " + others, plans[chosen])

    def choose(self, problem: Problem) -> tuple[str, AggregationPlan]:
        """The placement that :meth:`arrange` lays out, and its plans; raises what that does."""
        if self.edges != "auto":
            return self.edges, self._planned(problem, self.edges)
        plans = self._all_planned(problem)
        chosen = fastest(plans, self.edge_seconds)
        return chosen, plans[chosen]

    def _all_planned(self, problem: Problem) -> dict[str, AggregationPlan]:
        plans = {"head": self._planned(problem, "head")}
        for edges in EDGES[1:]:
            with suppress(NoWayBackError):
                plans[edges] = self._planned(problem, edges)
        return plans

    def lay_out(
        self, problem: Problem, edges: str, why: str, plan: AggregationPlan | None = None
    ) -> Arrangement:
        """What :meth:`arrange` makes of one placement; ``why`` has places for its name and its line, or is ""."""
        plan = self._planned(problem, edges) if plan is None else plan
        why = why.format(f"edges={edges!r}", self._line(plan))
        if why:
            _log.info("%s", why)
        exchanges = plan.exchanges
        most = int(exchanges.edges.max(initial=0))
        if most >= 2**31:
            raise ValueError(
                f"edges: a rank would sum {most} edges, at most {2**31 - 1} are possible; use more ranks"
            )
        if edges == "head":
            return Arrangement(exchanges.expand, plan.expand, problem.edges_of, why)
        return Arrangement(
            exchanges.expand,
            plan.expand,
            functools.partial(edges_of_worker, problem.graph, exchanges.worker),
            why,
            placement=edges,
            partial=Planned(exchanges.fold, plan.folded),
        )

    def _planned(self, problem: Problem, edges: str) -> AggregationPlan:
        """The plans of both exchanges of a placement, from the store where it has them."""
        topology = problem.topology
        group = None
        if self.per_machine:
            _, group = np.unique([device.machine for device in topology.devices], return_inverse=True)
        worker = workers_of(
            edges, problem.graph, problem.part, topology.num_devices, group=group, imbalance=self.imbalance
        )
        exchanges: Exchanges = exchanges_of(problem.graph, problem.part, worker, topology.num_devices)

        def plan(classes: ItemClasses, exchange: str) -> Plan:
            relation = classes.relation
            return problem.plans.plan(
                problem.part,
                relation,
                lambda: make_plan(relation, topology, problem.method, problem.options),
                self._depends_on(edges, exchange),
            )

        expand = plan(exchanges.expand, "halo")
        folded = plan(exchanges.fold, "partial")
        return AggregationPlan(exchanges, expand, folded, reverse_plan(folded))

    def _depends_on(self, edges: str, exchange: str) -> dict[str, Any]:
        if edges == "head" and exchange == "halo":
            return {}
        bounds = {"imbalance": self.imbalance, "per_machine": self.per_machine} if edges == "cover" else {}
        return {"edges": edges, "exchange": exchange, **bounds}

    def _line(self, plan: AggregationPlan) -> str:
        """Seconds and counts in words."""
        expanded, folded = plan.exchanges.rows
        return (
            f"{seconds(plan.seconds(self.edge_seconds))} an aggregation ({seconds(plan.exchange_seconds)} of exchange),"
            f" {expanded} rows and {folded} partial sums, {plan.exchanges.imbalance:.2f} times the mean number of edges"
            " on the fullest rank"
        )
