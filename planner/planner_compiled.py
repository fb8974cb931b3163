"""``@compiled`` for the planner: the one door from here to :mod:`dgcl.kernels`, which owns compiling and its cache.

Compiled functions of the planner allocate nothing (``allocates=False``), where a first plan calls them: their callers
hand them scratch. numba would compile NumPy's functions anew for every use, and count references to every array of a
named tuple, which makes twice the code.
"""

from dgcl.kernels.compiled import compiled as compiled
