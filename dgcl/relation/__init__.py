"""Who needs which row: classes of vertices, and each rank's own part of the graph.

Imports `graph`, `partition` and `planner.relation`.
"""

from __future__ import annotations

from dgcl.relation.classes import VertexClasses, build_classes

__all__ = ["VertexClasses", "build_classes"]
