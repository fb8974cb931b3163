"""``python -m dgcl`` is the ``dgcl`` command."""

from __future__ import annotations

import sys

from dgcl.cli import main

if __name__ == "__main__":
    sys.exit(main())
