"""The planners, a file each, and the way from a relation to a finished plan."""

from __future__ import annotations

from dgcl.planner.methods.registry import METHODS, Method, Planner, get_planner, make_plan

__all__ = ["METHODS", "Method", "Planner", "get_planner", "make_plan"]
