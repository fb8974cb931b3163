"""Gives the planner ``@compiled``, the decorator of :mod:`dgcl.kernels` that compiles functions and caches the result.

The planner imports nothing else from there. Functions that a first plan calls allocate nothing (``allocates=False``):
their callers hand them scratch. Else numba would compile NumPy's functions anew for every use, and count references to
every array of a named tuple, which makes twice the code.
Called by `bits`, `tree_kernels`, `planner/methods/spst_kernel`, `planner/simulator/kernel`,
`planner/verify/delivery_kernels` and others. Free to change while no other file of the planner imports from there
(`tests/test_architecture.py`); the decorator itself is tested by `tests/kernels/test_compiled.py`.
"""

from dgcl.kernels.compiled import compiled as compiled
