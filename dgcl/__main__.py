"""``python -m dgcl`` is the ``dgcl`` command."""

import sys

from dgcl.cli import main

if __name__ == "__main__":
    sys.exit(main())
