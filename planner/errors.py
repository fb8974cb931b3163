"""The one error that is particular to planning."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan that is not what it claims to be: wrong structure, wrong delivery, wrong cost or wrong
    fingerprint.

    The message names the tree, class, edge, stage or field at fault.
    """
