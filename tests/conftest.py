"""Settings of the property tests: the same examples in every run, unless new ones are asked for.

A run of the suite must say the same thing about the same code twice. To look for examples that nobody has seen:
``pytest --hypothesis-profile=explore``. No deadlines, since the first example of a run may compile a kernel.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("reproducible")
