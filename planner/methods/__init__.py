"""The planners, one per file, and :func:`make_plan`, which makes a finished plan with one of them.

May import everything else in ``dgcl.planner`` but ``reading``.
"""

from dgcl.planner.methods.registry import METHODS, get_planner, make_plan

__all__ = ["METHODS", "get_planner", "make_plan"]
