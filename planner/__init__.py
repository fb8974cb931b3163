"""From a relation and a topology to a plan: pure functions, no torch, no processes.

>>> relation = Relation.from_classes(3, [(0, {1, 2}, 5), (1, {0}, 2)])
>>> relation.deliveries
12
"""

from __future__ import annotations

from dgcl.planner.errors import PlanError
from dgcl.planner.plan import Bound, Plan, PlanOptions, Trees
from dgcl.planner.relation import Relation

__all__ = ["Bound", "Plan", "PlanError", "PlanOptions", "Relation", "Trees"]
