"""What every test relies on: examples that are the same in every run, and a Ctrl-C that is heard.

A run of the suite must say the same thing about the same code twice. To look for examples that nobody has seen:
``pytest --hypothesis-profile=explore``. No deadlines, since the first example of a run may compile a kernel.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("reproducible")

# A shell that starts the tests in the background has them ignore SIGINT, and all the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
