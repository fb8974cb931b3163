"""All compiled code that a call can need, made before a communicator is handed out.

A rank that compiles in a call keeps its peers waiting, whose deadlines run. So each of these functions has one
signature, and setting up a communicator compiles or loads them all: about 6 s on one core the first time on a
machine, a tenth of a second from then on. Sums need no kernel for each element type
(:mod:`dgcl.kernels.additions`), so there is nothing left to be compiled when a type is first used.
"""

from __future__ import annotations

from dgcl.kernels import copies, futex, rows
from dgcl.kernels.compiled import compile_all
from dgcl.transport.network import slices
from dgcl.transport.shared_memory import engine


def prepare() -> None:
    """Compile, or load, what calls need."""
    compile_all(futex, copies, rows, engine, slices)
