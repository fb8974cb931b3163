"""A plan compiled for each rank, and checked; what a strategy hands in for that.

Imports :mod:`dgcl.graph`, :mod:`dgcl.relation` and :mod:`dgcl.planner`.
"""

from dgcl.program.compile import compile_programs
from dgcl.program.rank_program import Program, Schedule

__all__ = ["Program", "Schedule", "compile_programs"]
