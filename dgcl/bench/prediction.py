"""Predicts a plan's time for rows of any size.

Called by `measure`. Free to change while each time stands beside a check of the rows
(`tests/dgcl/bench/test_measure.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.planner.bounds.best import best_bound
from dgcl.planner.cost import predicted_seconds

if TYPE_CHECKING:
    from dgcl.planner import Plan


def predict(plan: Plan | None, row_bytes: int) -> tuple[float | None, float | None]:
    """Return a plan's time and lower bound for rows of this size; None without a plan."""
    if plan is None:
        return None, None
    model = predicted_seconds(plan.trees, plan.topology.arrays(), row_bytes)
    # The certificate holds for the plan's own row size: narrower rows take at least their share of it.
    share = plan.lower_bound_seconds * min(1.0, row_bytes / plan.row_bytes)
    bound = max(best_bound(plan.relation, plan.topology, row_bytes).seconds, share)
    return model, min(bound, model)
