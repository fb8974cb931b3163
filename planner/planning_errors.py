"""Errors of planning.

Called by users, this folder, `planner/verify/` and `dgcl/cli/`. Free to change while files, costs and
proofs of plans keep their meaning (`tests/planner/methods/test_make_plan.py` and
`tests/planner/test_fold.py`).
"""


class PlanError(ValueError):
    """A plan is not what it states: its structure, delivery, cost or fingerprint is wrong.

    The message names the tree, class, edge, stage or field.
    """


class NoRouteError(ValueError):
    """Rows are needed by a rank that no chain of links reaches; the message names the first such pair."""
