"""Reads numbers of bytes as people write them: 8GB is 8e9; 8G and 8GiB are 8 * 1024**3.

Called by `dgcl/options`, `dgcl/offload/offload`, `dgcl/advisor/choice` and `dgcl/cli/arguments`. Free to change while
units mean what they mean in GNU coreutils, and what is no positive number of bytes is refused
(`tests/dgcl/offload/test_store.py`).
"""

import re

from dgcl.topology.checks import shown


def as_bytes(value: int | str, name: str) -> int:
    """A number of bytes, given as such or as text: 8GB is 8e9, and 8G and 8GiB are 8 * 1024**3, as in GNU coreutils.

    Raises:
        ValueError: It is neither, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?B?)", str(value).strip(), re.IGNORECASE)
    if match is None or isinstance(value, float) or float(match[1]) <= 0:
        raise ValueError(f"{name} must be a positive number of bytes, or like '8GB' (got {shown(value)})")
    unit = 1000 if match[3].upper() == "B" else 1024
    return int(float(match[1]) * unit ** "_KMGT".index(match[2].upper() or "_"))
