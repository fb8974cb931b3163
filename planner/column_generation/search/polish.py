"""Offers whole trees: as they are, with trees exchanged, and re-parented, each where that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.column_generation.improvement.exchange import improve
from dgcl.planner.column_generation.improvement.reparent import reparent
from dgcl.planner.cost import predicted_seconds

if TYPE_CHECKING:
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.search.incumbent import Incumbent
    from dgcl.planner.trees import Trees

POLISH_TREES = 60_000  # plans of more trees are not improved: there a row more or less does not matter
NEAR = 1.01  # times the bound: faster plans are not re-parented


def offer_polished(
    found: Incumbent,
    trees: Trees,
    problem: Problem,
    num_stages: int,
    *,
    enough: float,
    thorough: bool,
    reparent_above: float,
) -> None:
    """Offer trees to the incumbent, and what becomes of them.

    Args:
        found: the incumbent.
        trees: of at most `num_stages` stages.
        problem: what they were made from.
        num_stages: stages that may be used.
        enough: rows per GB/s; faster plans are not improved.
        thorough: improve them as long as that helps.
        reparent_above: gap of the incumbent above which edges are re-parented.
    """

    def seconds() -> float:
        return predicted_seconds(trees, found.arrays, found.options.row_bytes)

    found.offer(trees, "prices")
    if trees.num_trees <= POLISH_TREES and not found.is_late() and seconds() > enough * found.unit:
        trees = improve(
            trees, problem, found.relation, found.arrays, num_stages,
            enough=enough, latency_unit=1.0 / found.unit, thorough=thorough, deadline=found.deadline,
        )  # fmt: skip
        found.offer(trees, "prices")
    near = NEAR * found.bound.seconds
    if found.gap() > reparent_above and not found.is_late() and seconds() >= near:
        most = min(trees.num_stages + 1, found.relation.world_size - 1)
        trees = reparent(
            trees, problem, found.relation, found.arrays, most,
            enough=near / found.unit, latency_unit=1.0 / found.unit, deadline=found.deadline,
        )  # fmt: skip
        found.offer(trees, "prices")
