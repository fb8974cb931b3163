"""The errors that are particular to planning."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan that is not what it claims to be: wrong structure, wrong delivery, wrong cost or wrong
    fingerprint.

    The message names the tree, class, edge, stage or field at fault.
    """


class NoRouteError(ValueError):
    """Rows are needed where no chain of links leads; the message names the first such pair."""
