"""Numbers of bytes as people write them."""

import operator
import re
from contextlib import suppress

from dgcl.topology.checks import shown

_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def as_bytes(value: int | str, name: str) -> int:
    """A number of bytes, given as such or as "8GB"; K, M, G and T are powers of 1024.

    Raises:
        ValueError: It is neither, or not positive.
    """
    if not isinstance(value, (str, bool)):
        with suppress(TypeError):
            if (number := operator.index(value)) > 0:
                return number
    match = (
        re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", value.strip(), re.IGNORECASE)
        if isinstance(value, str)
        else None
    )
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{name} must be a positive number of bytes, or like '8GB' (got {shown(value)})")
    return int(float(match[1]) * 2 ** _POWERS[match[2].upper()])
