"""Programs: a plan compiled for each rank, proved on symbols, and what its buffers take."""

from __future__ import annotations

from dgcl.program.compile import compile_programs
from dgcl.program.model import Program, Schedule

__all__ = ["Program", "Schedule", "compile_programs"]
