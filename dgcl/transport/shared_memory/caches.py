"""Reads the size of the processor's last-level cache."""

import functools
from pathlib import Path

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_UNKNOWN = 32 << 20


@functools.cache
def last_level_cache(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache that the first core uses; 32 MB if Linux does not report it."""
    sizes = [_size(path) for path in root.glob("index*/size")]
    return max(sizes, default=0) or _UNKNOWN


def _size(path: Path) -> int:
    """Bytes from a file that holds a text such as "32768K"; 0 if there is none."""
    try:
        text = path.read_text().strip()
        return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)
    except (OSError, ValueError):
        return 0
