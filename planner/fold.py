"""Reverses a plan: every tree edge turned round, stages in reverse, to add contributions into the owners' rows.

A rank adds what its children send to its own contribution, and sends one row to its parent. So the fold (that reversed
plan) moves as many rows as the plan, without its idle relays (:mod:`dgcl.planner.relays`), which contribute nothing.
Where every link has one the other way over the same connections, it takes exactly as long.
Called by `planner/reading/plan_report`, `planner/verify/check_plan`, `dgcl/grid/grid_strategy` and
`dgcl/placement/placement_strategy`. Free to change while each owner gets each contribution once, and no fold is faster
than its bound (`tests/planner/test_fold.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.array_types import ranges
from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import stage_seconds
from dgcl.planner.plan import Plan
from dgcl.planner.planning_errors import PlanError
from dgcl.planner.relation import Relation
from dgcl.planner.relays import without_idle_relays
from dgcl.planner.trees import Bound, Trees
from dgcl.planner.verify.delivery import verify_trees

if TYPE_CHECKING:
    from dgcl.topology import Topology, TopologyArrays


# ``dgcl check`` and ``dgcl plan`` show this fold. The tables and buffers that ranks use for it are proved
# separately, in ``dgcl/program/verify.py``.


class NoWayBackError(ValueError):
    """A link that the plan uses has none the other way."""


@dataclass(frozen=True, eq=False)
class Fold:
    """How contributions travel back to the owners.

    Attributes:
        relation: who contributes to whom: every destination of a class has one row for its owner.
        trees: edges point towards the owner and are listed children first; stages rise towards the owner.
        topology: the machine.
        row_bytes: bytes per row.
        stage_seconds: predicted seconds of each stage.
        bound: no fold of this relation on this machine is faster. If ``symmetric``, the plan's own bound, else the
            best by cuts and distance (:func:`dgcl.planner.bounds.best.best_bound`).
        symmetric: whether every link has one the other way, over the same connections.
    """

    relation: Relation
    trees: Trees
    topology: Topology
    row_bytes: int
    stage_seconds: tuple[float, ...]
    bound: Bound
    symmetric: bool

    @property
    def predicted_seconds(self) -> float:
        """The sum over stages."""
        return float(sum(self.stage_seconds))


def reverse_trees(trees: Trees) -> Trees:
    """Return the trees with every edge turned round; stages, edges and trees in reverse order."""
    return Trees(
        trees.tree_class[::-1],
        trees.tree_count[::-1],
        trees.num_edges - trees.edge_ptr[::-1],
        trees.edge_dst[::-1],
        trees.edge_src[::-1],
        trees.num_stages - 1 - trees.edge_stage[::-1],
    )


def transpose(topology: Topology) -> Topology:
    """Return the topology with every link turned round: an expand there costs what a fold costs here."""
    from dgcl.topology import Link, Topology

    links = tuple(Link(link.dst, link.src, link.route[::-1]) for link in topology.links)
    return Topology(topology.name, topology.devices, topology.connections, links)


def is_symmetric(at: TopologyArrays) -> bool:
    """Tell whether every link has one the other way, over the same connections."""
    back = at.link_of[at.link_dst, at.link_src][::-1]
    sizes, wires = np.diff(at.link_ptr), at.direction_connection[at.link_directions]
    return (
        bool((back >= 0).all())
        and np.array_equal(sizes[back], sizes[::-1])
        and np.array_equal(wires[ranges(at.link_ptr[back], sizes[back])], wires[::-1])
    )


def reverse_plan(plan: Plan) -> Fold:
    """Return the fold of a plan, verified.

    Raises:
        NoWayBackError: An edge has no link the other way; names the pair.
        PlanError: The fold is wrong (:func:`verify_fold`).
    """
    trees = reverse_trees(without_idle_relays(plan))
    at = plan.topology.arrays()
    missing = np.flatnonzero(at.link_of[trees.edge_src, trees.edge_dst] < 0)
    if missing.size:
        s, d = int(trees.edge_src[missing[0]]), int(trees.edge_dst[missing[0]])
        names = [plan.topology.devices[r].name for r in (s, d)]
        raise NoWayBackError(
            f"the plan cannot be folded back: it sends from rank {d} ({names[1]}) to rank {s} ({names[0]})"
            f" but topology {plan.topology.name!r} has no link {names[0]} -> {names[1]} for the way back"
        )
    seconds = stage_seconds(trees, at, plan.row_bytes)
    symmetric = is_symmetric(at)  # then machines and bounds are the same
    turned = plan.topology if symmetric else transpose(plan.topology)
    known = Bound(plan.lower_bound_seconds, plan.meta.get("limited_by", "")) if symmetric else None
    bound = best_bound(plan.relation, turned, plan.row_bytes, known)
    fold = Fold(
        plan.relation, trees, plan.topology, plan.row_bytes, tuple(seconds.tolist()), bound, symmetric
    )
    verify_fold(fold)
    return fold


def verify_fold(fold: Fold) -> None:
    """Prove that a fold adds every destination's contribution into its owner's row exactly once.

    Proof. Turn the fold round again: ``verify_trees`` shows that each tree is rooted at the owner, enters no rank
    twice, contains every destination and uses links (of the transposed topology), and that stages rise and edges are
    listed from the root outwards. So in the fold every rank of the tree but the owner sends exactly once, to its
    parent, in a later stage and later in the list than every edge that enters it. By induction from the leaves, a rank
    sends the sum of the contributions in its subtree, each once. The owner receives the sums of disjoint subtrees that
    hold all destinations. (A rank that does not need the row contributes nothing.)

    Raises:
        PlanError: The proof fails; names the tree and the edge, numbered as in the turned-round trees.
    """
    turned = fold.topology if fold.symmetric else transpose(fold.topology)
    try:
        verify_trees(fold.relation, reverse_trees(fold.trees), turned)
    except PlanError as error:
        raise PlanError(f"fold, seen from the owner: {error}") from None
