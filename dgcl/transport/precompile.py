"""Compiles or loads all machine code that calls can need, before a communicator is returned.

A rank that compiles during a call would keep its peers waiting while their deadlines run. So every compiled function
that a call can reach declares its one signature, and setting up a communicator compiles or loads them all: about 12 s
on one core the first time on a machine, a tenth of a second from then on. A new module of such functions must be added
to `prepare`. Sums need no kernel per element type (:mod:`dgcl.kernels.additions`).
Called by `dgcl/build` and `dgcl/cli/warmup`. Free to change while a rank without machine code on disk makes no peer run
into its deadline (`tests/dgcl/test_cold_peer.py`).
"""

from dgcl.kernels import copies, futex, row_moves, rows
from dgcl.kernels.compiled import compile_all
from dgcl.transport.collective import agreement
from dgcl.transport.common import words
from dgcl.transport.shared_memory import engine, interpreter


def prepare() -> None:
    """Compile or load the kernels that calls need."""
    compile_all(futex, copies, rows, row_moves, words, engine, interpreter, agreement)
