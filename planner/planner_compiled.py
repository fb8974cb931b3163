"""``@compiled`` for the planner: the one door from here to :mod:`dgcl.kernels`, which owns compiling and its cache.

Compiled functions of the planner allocate nothing (``allocates=False``), where a first plan calls them: their callers
hand them scratch. numba would compile NumPy's functions anew for every use, and count references to every array of a
named tuple, which makes twice the code.

Called by `planner/column_generation/pricing/`, `planner/column_generation/improvement/` and 7 more folders.
Free to change while files, costs and proofs of plans keep their meaning (`tests/planner/test_bits.py`).
"""

from dgcl.kernels.compiled import compiled as compiled
