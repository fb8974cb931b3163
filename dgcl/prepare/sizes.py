"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
from operator import index
from typing import SupportsIndex

__all__ = ["as_bytes"]

_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def as_bytes(value: int | str, name: str) -> int:
    """A number of bytes, given as such or as "8GB"; K, M, G and T are powers of 1024.

    Raises:
        ValueError: It is neither, or not positive.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and index(value) > 0:
        return index(value)
    match = (
        re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", value.strip(), re.IGNORECASE)
        if isinstance(value, str)
        else None
    )
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{name} must be a positive number of bytes, or like '8GB' (got {value!r})")
    return int(float(match[1]) * 2 ** _POWERS[match[2].upper()])
