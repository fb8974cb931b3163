"""The planner's exceptions: a plan is not what it states, or no chain of links reaches a rank.

Both are ValueErrors, so that callers who catch those catch these, too.
Called by `fold`, `reach`, `planner/verify/check_plan`, `planner/verify/delivery` and `dgcl/cli/check`. Free to change
while both stay ValueErrors whose messages name the place (`tests/planner/methods/test_make_plan.py`,
`tests/planner/verify/test_check.py`).
"""


class PlanError(ValueError):
    """A plan is not what it states: its structure, delivery, cost or fingerprint is wrong.

    The message names the tree, class, edge, stage or field.
    """


class NoRouteError(ValueError):
    """Rows are needed by a rank that no chain of links reaches; the message names the first such pair."""
