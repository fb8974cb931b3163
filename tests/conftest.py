"""What every test relies on: examples that are the same in every run, and a Ctrl-C that is heard.

A run of the suite must say the same thing about the same code twice. To look for examples that nobody has seen:
``pytest --hypothesis-profile=explore``. No deadlines, and no check of how fast examples are drawn, since the first of a
run may compile a kernel.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("reproducible", **UNTIMED, derandomize=True)
settings.register_profile("explore", **UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("reproducible")

# A shell that starts the tests in the background has them ignore SIGINT, and all the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
