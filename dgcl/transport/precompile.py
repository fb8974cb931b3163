"""Compiles or loads all machine code that calls can need, before a communicator is returned.

A rank that compiles during a call would keep its peers waiting while their deadlines run. So each of these functions
has one signature, and setting up a communicator compiles or loads them all. This takes about 12 s on one core the first
time on a machine, and a tenth of a second later. Sums need no kernel per element type (:mod:`dgcl.kernels.additions`),
so the first use of a type compiles nothing.
Called by `dgcl/build` and `dgcl/cli/warmup`. Free to change while no peer's deadline passes because a rank has no
machine code on disk (`tests/dgcl/test_cold_peer.py`).
"""

from dgcl.kernels import copies, futex, row_moves, rows
from dgcl.kernels.compiled import compile_all
from dgcl.transport.collective import agreement
from dgcl.transport.common import words
from dgcl.transport.shared_memory import engine, interpreter


def prepare() -> None:
    """Compile or load the kernels that calls need."""
    compile_all(futex, copies, rows, row_moves, words, engine, interpreter, agreement)
