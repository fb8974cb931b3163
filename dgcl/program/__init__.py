"""Compiles a communication plan into the program of each rank, and defines what strategies return for that.

Imports :mod:`dgcl.graph`, :mod:`dgcl.relation` and :mod:`dgcl.planner`.
"""

from dgcl.program.compile import compile_programs
from dgcl.program.rank_program import Program, Schedule

__all__ = ["Program", "Schedule", "compile_programs"]
