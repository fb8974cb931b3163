"""Plans how rows travel: from a relation and a topology to a plan.

Pure functions without torch or processes. May import :mod:`dgcl.topology` only.

>>> from dgcl.topology import preset
>>> relation = Relation.from_classes(4, [(0, {1, 2, 3}, 500), (1, {0}, 200)])
>>> plan = make_plan(relation, preset("uniform4"))
>>> relation.deliveries, plan.method, plan.predicted_seconds <= plan.direct_seconds
(1700, 'auto', True)
"""

from dgcl.planner.methods.registry import METHODS, make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.planning_errors import PlanError
from dgcl.planner.planning_options import PlanOptions
from dgcl.planner.relation import Relation
from dgcl.planner.trees import Bound, Trees
from dgcl.planner.verify.check_plan import Report, check_plan_file, verify_plan

__all__ = [
    "METHODS",
    "Bound",
    "Plan",
    "PlanError",
    "PlanOptions",
    "Relation",
    "Report",
    "Trees",
    "check_plan_file",
    "make_plan",
    "verify_plan",
]
