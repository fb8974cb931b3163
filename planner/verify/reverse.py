"""The fold of a plan: the same trees with every edge turned round and the stages in reverse.

Where the plan carries a row from its owner to those that need it, the fold carries their contributions
back: a rank adds what it gets from its children to its own contribution and sends one row to its parent, so
it moves exactly as many rows as the plan (relays that serve nobody aside, which contribute nothing: `carried.py`).
Where every link has its way back over the same connections it takes exactly as long.

`dgcl check` and the screen of `dgcl plan` show what this module finds. What the ranks then do with it, tables and
buffers, is proved on its own (dgcl/program/verify.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import stage_seconds
from dgcl.planner.errors import PlanError
from dgcl.planner.plan import Bound, Plan, Trees
from dgcl.planner.relation import Relation
from dgcl.planner.verify.carried import carried_trees
from dgcl.planner.verify.delivery import verify_trees

if TYPE_CHECKING:
    from dgcl.topology import Topology


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
        bound: no fold of this relation on this machine is faster. Where links are alike both ways that is the
            plan's own bound, else the best by cuts and distance (`bounds.py`).
        alike: whether they are: every link has one the other way, over the same connections.
    """

    relation: Relation
    trees: Trees
    topology: Topology
    row_bytes: int
    stage_seconds: tuple[float, ...]
    bound: Bound
    alike: bool

    @property
    def predicted_seconds(self) -> float:
        """The sum over stages."""
        return float(sum(self.stage_seconds))


def reverse_trees(trees: Trees) -> Trees:
    """Turn every edge round, number the stages from the other end, and list each tree's edges the other
    way.
    """
    starts = np.repeat(trees.edge_ptr[:-1] + trees.edge_ptr[1:] - 1, np.diff(trees.edge_ptr))
    mirror = starts - np.arange(trees.num_edges)
    last = trees.num_stages - 1
    return Trees(
        trees.tree_class,
        trees.tree_count,
        trees.edge_ptr,
        trees.edge_dst[mirror],
        trees.edge_src[mirror],
        last - trees.edge_stage[mirror],
    )


def transpose(topology: Topology) -> Topology:
    """Return the machine on which an expand costs what a fold costs on this one: every link turned round."""
    from dgcl.topology import Link, Topology

    links = tuple(Link(link.dst, link.src, link.route[::-1]) for link in topology.links)
    return Topology(topology.name, topology.devices, topology.connections, links)


def reverse_plan(plan: Plan) -> Fold:
    """Return the fold of a plan, verified.

    Raises:
        NoWayBackError: an edge has no link the other way; the message names the pair.
    """
    trees = reverse_trees(carried_trees(plan))
    missing = np.flatnonzero(plan.topology.arrays().link_of[trees.edge_src, trees.edge_dst] < 0)
    if missing.size:
        s, d = int(trees.edge_src[missing[0]]), int(trees.edge_dst[missing[0]])
        names = [plan.topology.devices[r].name for r in (s, d)]
        raise NoWayBackError(
            f"the plan cannot be folded back: it sends from rank {d} ({names[1]}) to rank {s} ({names[0]})"
            f" but topology {plan.topology.name!r} has no link {names[0]} -> {names[1]} for the way back"
        )
    seconds = stage_seconds(trees, plan.topology.arrays(), plan.row_bytes)
    turned = transpose(plan.topology)
    alike = set(turned.links) == set(plan.topology.links)  # the machines are the same then, and so are bounds
    known = Bound(plan.lower_bound_seconds, plan.meta.get("limited_by", "")) if alike else None
    bound = best_bound(plan.relation, turned, plan.row_bytes, known)
    fold = Fold(plan.relation, trees, plan.topology, plan.row_bytes, tuple(seconds.tolist()), bound, alike)
    verify_fold(fold)
    return fold


def verify_fold(fold: Fold) -> None:
    """Prove that a fold adds every destination's contribution into its owner's row exactly once.

    Proof. Turn the fold round again: `verify_trees` shows that each tree is rooted at the owner, enters no
    rank twice, contains every destination, uses links (of the transposed machine), and that stages rise and
    edges are listed from the root outwards. So in the fold every rank of the tree but the owner sends
    exactly once, along the only edge to its parent, in a later stage and at a later place in the list than
    every edge that it receives over. By induction from the leaves, what a rank sends is the sum of the
    contributions in its subtree, each once; the owner receives the sums of disjoint subtrees that hold all
    destinations. (A rank that does not need the row contributes nothing.)

    Raises:
        PlanError: naming the tree and edge that break the proof; edges are numbered as in the turned-round
            trees.
    """
    try:
        verify_trees(fold.relation, reverse_trees(fold.trees), transpose(fold.topology))
    except PlanError as error:
        raise PlanError(f"fold, seen from the owner: {error}") from None
