"""``python -m dgcl`` is the ``dgcl`` command.

Called by users. Free to change while the public names and errors stay (`tests/dgcl/`).
"""

import sys

from dgcl.cli import main

if __name__ == "__main__":
    sys.exit(main())
