"""The strategies "head", "tail" and "cover", which choose the rank that sums each edge and plan both exchanges.

"head" (in ``strategy=`` called "halo") sums at the owner of an edge's target and is the ordinary plan of rows; "tail"
sums at the owner of its source; "cover" moves the fewest rows. Partial sums are planned as rows that go the other way;
``reverse_plan`` gives their cost.
Called by users (``dgcl.EdgePlacement``), `dgcl/advisor/counts`, `dgcl/advisor/spelling` and `dgcl/prepare/shares`. Free
to change while plans carry the rows of both exchanges, no cost is below its bound, and a rank with 2**31 edges is
refused (`tests/dgcl/placement/test_plans.py`).
"""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph import Graph
from dgcl.placement.exchanges import EDGES, Exchanges, exchanges_of, imbalance_of, summing_ranks
from dgcl.placement.placed_edges import edges_summed_by
from dgcl.planner.fold import reverse_plan
from dgcl.planner.reading.render import seconds
from dgcl.program.strategy import Arrangement, Planned, Problem, Strategy
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice, check_flag, shown

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class EdgePlacement(Strategy):
    """Sums edges where ``edges`` says; a :class:`~dgcl.program.strategy.Strategy`.

    Attributes:
        edges: "head", "tail" or "cover".
        imbalance: For "cover": no rank sums more than this times the mean number of edges, as far as sums at the head
            allow; None: no bound.
        per_machine: For "cover": covers of pairs of machines instead of pairs of ranks; within a machine edges are
            summed at their heads.

    Raises:
        ValueError, TypeError: One of them cannot be; named.
    """

    edges: str = "head"
    imbalance: float | None = None
    per_machine: bool = False

    def __post_init__(self) -> None:
        check_choice(self.edges, "edges", EDGES)
        bound = self.imbalance
        if bound is not None and (not isinstance(bound, Real) or isinstance(bound, bool) or not bound >= 1):
            raise ValueError(f"imbalance must be at least 1, the mean, or None (got {shown(bound)})")
        check_flag(self.per_machine, "per_machine")

    def first_plan(self) -> Mapping[str, Any]:
        """What the plan of rows depends on: the placement, but for "head", whose plan is the ordinary one."""
        return self._depends_on("halo")

    def arrange(self, problem: Problem) -> Arrangement:
        """Plan both exchanges.

        Raises:
            ValueError: Unknown method, or a rank would sum 2**31 edges or more.
            NoWayBackError: Partial sums would travel over a link that has none the other way.
        """
        if self.edges == "head":
            return problem.plan_vertices()
        exchanges, _ = self.exchanges(problem.graph, problem.part, problem.topology)
        most = int(exchanges.edges.max(initial=0))
        if most >= 2**31:
            raise ValueError(
                f"edges: a rank would sum {most} edges, at most {2**31 - 1} are possible; use more ranks"
            )
        expand = problem.plan(exchanges.expand.relation, **self._depends_on("halo"))
        folded = problem.plan(exchanges.fold.relation, **self._depends_on("partial"))
        taken = expand.predicted_seconds + reverse_plan(folded).predicted_seconds
        expanded, summed = exchanges.rows
        why = (
            f"strategy={self.edges!r} was asked for: {seconds(taken)} of exchange in an aggregation,"
            f" {expanded} rows and {summed} partial sums, {imbalance_of(exchanges.edges):.2f} times the mean number of"
            " edges on the fullest rank"
        )
        _log.info("%s", why)
        placement = self.edges + (":machine" if self.per_machine else "")
        if self.imbalance is not None:
            placement += f", imbalance {self.imbalance}"
        return Arrangement(
            exchanges.expand,
            expand,
            functools.partial(edges_summed_by, problem.graph, exchanges.summed_by),
            why,
            placement=placement,
            partial=Planned(exchanges.fold, folded),
        )

    def exchanges(self, graph: Graph, part: NDArray[np.int32], topology: Topology) -> tuple[Exchanges, int]:
        """What travels on a machine, and how many rows a minimum cover may save, where it was not found."""
        group, size = None, topology.num_devices
        if self.per_machine:
            _, group = np.unique([device.machine for device in topology.devices], return_inverse=True)
        summed_by, excess = summing_ranks(
            self.edges, graph, part, size, group=group, imbalance=self.imbalance
        )
        return exchanges_of(graph, part, summed_by, size), excess

    def _depends_on(self, exchange: str) -> dict[str, Any]:
        if self.edges == "head":
            return {}
        bounds = (
            {"imbalance": self.imbalance, "per_machine": self.per_machine} if self.edges == "cover" else {}
        )
        return {"edges": self.edges, "exchange": exchange, **bounds}
