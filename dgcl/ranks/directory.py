"""Who owns which id: a directory in ranges of ids, of which every rank keeps one, and requests that it passes on.

Nobody holds all owners. Who lacks ids asks the ranks that keep their ranges, and these tell it the owners, and the
owners who asks: two exchanges, after which both ends of every pair know what is read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dgcl.ranks.control import Control

Ids = NDArray[np.int64]

_NOBODY: Final = -1


class Directory:
    """This rank's range of the directory of ids 0 to N - 1, empty at first.

    Args:
        control: The control plane.
        num_ids: N.
    """

    def __init__(self, control: Control, num_ids: int) -> None:
        self._control, self.num_ids = control, num_ids
        self._bounds = num_ids * np.arange(control.world_size + 1) // control.world_size
        self._low = int(self._bounds[control.rank])
        self._owner = np.full(int(self._bounds[control.rank + 1]) - self._low, _NOBODY, np.int32)

    def find(
        self, ids: Ids, columns: Ids | None = None, *, enter: Ids | None = None, problem: str | None = None
    ) -> tuple[NDArray[np.int32], list[Ids]]:
        """The owners of some ids, and who asks for this rank's own. Collective.

        Args:
            ids: ``(n,)``, ascending, all in range.
            columns: ``(n, k)``, what the owner of each is to hear besides.
            enter: The ids that this rank owns, in any order: all ranks say so, before they ask. None: no rank does.
            problem: What is wrong on this rank; it asks for nothing.

        Returns:
            ``(n,)`` int32 owners; and from each rank the ids of this rank's for which it asks, ascending, with the
            columns, ``(m, 1 + k)``.

        Raises:
            ValueError: On every rank: a problem of some rank's; an id with two owners, or none.
        """
        table = ids[:, None] if columns is None else np.column_stack([ids, columns])
        own = np.zeros(0, np.int64) if enter is None else np.sort(enter)
        received = self._control.all_to_all(
            [(problem, *each) for each in zip(self._split(table, ids), self._split(own, own), strict=True)]
        )
        _raise_first([text for text, *_ in received])
        problem = None
        if enter is not None:
            problem = self._enter([theirs for *_, theirs in received])
        owners = [self._owner[asked[:, 0] - self._low] for _, asked, _ in received]
        for rank, (theirs, (_, asked, _)) in enumerate(zip(owners, received, strict=True)):
            if problem is None and (theirs == _NOBODY).any():
                unknown = asked[int(np.argmax(theirs == _NOBODY)), 0]
                problem = f"sources: rank {rank} reads vertex {unknown}, which no rank owns"
        ranks = range(self._control.world_size)
        answers = self._control.all_to_all(
            [
                (
                    problem,
                    owners[rank],
                    [asked[theirs == rank] for theirs, (_, asked, _) in zip(owners, received, strict=True)],
                )
                for rank in ranks
            ]
        )
        _raise_first([text for text, *_ in answers])
        requests = [np.concatenate([passed[rank] for *_, passed in answers]) for rank in ranks]
        return np.concatenate([theirs for _, theirs, _ in answers]), requests

    def _split(self, rows: Any, ids: Ids) -> list[Any]:
        """Rows of ascending ids, for each rank those of its range."""
        places = np.searchsorted(ids, self._bounds)
        return [rows[begin:end] for begin, end in pairwise(places)]

    def _enter(self, owned: list[Ids]) -> str | None:
        """Enter what each rank owns of this range; what is wrong with it."""
        self._owner[:] = _NOBODY
        for rank, ids in enumerate(owned):
            before = self._owner[ids - self._low]
            if (before != _NOBODY).any():
                twice = int(np.argmax(before != _NOBODY))
                return f"owned_ids: vertex {ids[twice]} has two owners, ranks {before[twice]} and {rank}"
            self._owner[ids - self._low] = rank
        if (self._owner == _NOBODY).any():
            return (
                f"owned_ids: no rank owns vertex {self._low + int(np.argmax(self._owner == _NOBODY))} of the"
                f" {self.num_ids} that all own together; ids are 0 to {self.num_ids - 1}"
            )
        return None


def _raise_first(problems: list[str | None]) -> None:
    text = next((text for text in problems if text is not None), None)
    if text is not None:
        raise ValueError(text)
