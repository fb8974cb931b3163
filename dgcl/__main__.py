"""``python -m dgcl``: runs the ``dgcl`` command of :mod:`dgcl.cli` and exits with its status.

Run by users, and by `dgcl/cli/warmup`, which starts one such process for each part that it compiles. Free to change
while exit status and messages are those of the command, and little is imported (`tests/dgcl/cli/test_process.py`).
"""

import sys

from dgcl.cli import main

if __name__ == "__main__":
    sys.exit(main())
