"""Why a rank has left the control group, for those who only see its connections break.

A broken connection names its other end, and that rank may have left only because of a third. So whoever leaves
first writes down whose fault it was, into the store that the ranks met by, and then closes its connections: who sees
them closed finds the note. A rank that has died leaves none, which tells the same.

Every step takes at most half a second: the store may have died with the rank that keeps it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

_PATIENCE = 0.5  # seconds


@dataclass(frozen=True)
class Farewell:
    """Why a rank has left.

    Attributes:
        culprit: The rank whose fault it was: itself, or one that it had waited for.
        clause: What is the matter with the culprit, beginning with its name.
        late: The culprit has not come in time, and may live.
    """

    culprit: int
    clause: str
    late: bool = False


class Farewells:
    """The notes of the ranks of one group.

    Args:
        store: Where; it belongs to this group alone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def say(self, rank: int, farewell: Farewell) -> None:
        """Write down why ``rank`` leaves; others see it when this returns, if the store still answers."""
        note = json.dumps([farewell.culprit, farewell.clause, farewell.late])

        def write() -> None:
            self._store.set(str(rank), note)
            self._store.check([str(rank)])  # has an answer, which comes after what was sent before

        _within_patience(write)

    def of(self, rank: int) -> Farewell | None:
        """Why ``rank`` has left.

        Raises:
            ConnectionError: The store does not answer.
        """

        def read() -> bytes | None:
            return self._store.get(str(rank)) if self._store.check([str(rank)]) else None

        answered, note = _within_patience(read)
        if not answered:
            raise ConnectionError("the store that the ranks met by does not answer")
        return None if note is None else Farewell(*json.loads(note))


def _within_patience(step: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a step ended well within the time that there is, and its result."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(step())
        except RuntimeError:  # the store is gone, and what was to be said is known without it
            return

    thread = threading.Thread(target=run, name="dgcl farewell", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(results), results[0] if results else None
