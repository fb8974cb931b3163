"""What :mod:`tests.test_architecture` shares with other tests."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def sources(folder: str) -> list[Path]:
    """The files of one folder; for dgcl those that are its own, not those behind its symlinks."""
    own = [
        Path(where) / name
        for where, _, names in os.walk(ROOT / folder)
        for name in names
        if name.endswith(".py")
    ]
    return sorted(own)
