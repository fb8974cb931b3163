"""``@compiled`` for the planner: the one door from here to :mod:`dgcl.kernels`, which owns compiling and its cache."""

from __future__ import annotations

from dgcl.kernels.compiled import compiled

__all__ = ["compiled"]
