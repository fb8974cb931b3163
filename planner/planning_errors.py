"""Errors of planning."""


class PlanError(ValueError):
    """A plan is not what it states: its structure, delivery, cost or fingerprint is wrong.

    The message names the tree, class, edge, stage or field.
    """


class NoRouteError(ValueError):
    """Rows are needed by a rank that no chain of links reaches; the message names the first such pair."""
