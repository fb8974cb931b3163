"""Settings of the property tests: no deadline, since the first example of a run may compile a kernel."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("planner", deadline=None)
settings.load_profile("planner")
