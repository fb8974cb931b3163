"""Tables of cases that are too many for every day: a sample runs always, the rest with the slow tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def sampled(*axes: Iterable[Any], keep: Callable[..., bool]) -> list[Any]:
    """All combinations for ``pytest.mark.parametrize``; those are slow where `keep` of the places on the axes is not.

    The last axis varies fastest.
    """
    tables: list[Sequence[Any]] = [tuple(axis) for axis in axes]
    return [
        pytest.param(
            *(table[i] for table, i in zip(tables, places, strict=True)),
            marks=() if keep(*places) else pytest.mark.slow,
        )
        for places in itertools.product(*(range(len(table)) for table in tables))
    ]
