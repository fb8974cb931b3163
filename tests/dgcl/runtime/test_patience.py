"""Whether every rank can have a core for itself, against trying all ways to give them one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.runtime.patience import among_others, fit_on_cores


@pytest.mark.parametrize(
    ("allowed", "fit"),
    [
        ([(0, 1)], True),
        ([(0, 1), (0, 1)], True),
        ([(0, 1)] * 3, False),
        ([(0,), (1,), (2,), (3,)], True),
        ([(0,), (0,)], False),
        ([(0,), (0,), (0, 1, 2)], False),
        ([(0, 1), (0,), (1, 2)], True),
    ],
    ids=["alone", "two", "more than cores", "bound", "bound to one", "two on one of three", "must give way"],
)
def test_cores(allowed: list[tuple[int, ...]], fit: bool) -> None:
    assert fit_on_cores(allowed) == fit


@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=5))
def test_against_all_ways(allowed: list[set[int]]) -> None:
    ways = itertools.permutations(range(5), len(allowed))
    possible = any(all(core in each for core, each in zip(way, allowed, strict=True)) for way in ways)
    assert fit_on_cores(allowed) == possible


@pytest.mark.parametrize("patience", [(0, 0, 0), (2_000, 4, 5_000_000), (50_000, 200, 50_000)])
def test_with_more_under_way_nobody_sleeps_longer_than_a_millisecond(patience: tuple[int, int, int]) -> None:
    look, naps, nap = among_others(patience)
    assert look == patience[0]
    assert naps * nap <= min(1_000_000, patience[1] * patience[2])
