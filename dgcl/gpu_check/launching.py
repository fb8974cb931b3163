"""Starting the ranks of a check: one configuration that fails is told and does not keep the others from running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import dgcl

#: Tells people something.
Say = Callable[[str], object]

_LAUNCH_SECONDS: Final = 120.0
_MOST_WORDS: Final = 1500


def launch(
    function: Callable[..., Any], count: int, *args: Any, ranks: Literal["threads", "processes"] = "processes"
) -> list[Any] | str:
    """What each rank found; a line where it could not be done."""
    try:
        return dgcl.launch(function, count, *args, ranks=ranks, timeout=_LAUNCH_SECONDS)
    except Exception as error:  # told in the report; the other configurations still count
        notes = " ".join(getattr(error, "__notes__", []))
        return " ".join(f"{type(error).__name__}: {error} {notes}".split())[:_MOST_WORDS]
