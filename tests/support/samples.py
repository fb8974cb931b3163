"""Tables of cases that are too many for every day: a sample runs always, the rest with the slow tests."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings


def named(names: str, cases: dict[str, Any]) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` over a table of the name of each case and its values."""
    return pytest.mark.parametrize(names, list(cases.values()), ids=list(cases))


def slow(*values: Any, **options: str) -> Any:
    """A case of ``pytest.mark.parametrize`` that ``.ci/run`` plays, and nobody every day."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)  # type: ignore[arg-type]


def matrix(*values: Any, **options: str) -> Any:
    """A case that ``make test-matrix`` plays alone."""
    return pytest.param(*values, marks=pytest.mark.matrix, **options)  # type: ignore[arg-type]


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


def examples(daily: int, thorough: int) -> settings:
    """So many examples of a property that takes long to try, in place of the profile's 12 or 120."""
    return settings(max_examples=daily if settings().max_examples <= 12 else thorough)


def mark_samples(items: list[pytest.Item]) -> None:
    """Mark cases of tests with ``@pytest.mark.sample(n)`` as slow, all but about one in `n`.

    Each ``parametrize`` of the test is an axis; a case stays whose places on all axes add up to a multiple of `n`, so
    that what stays is spread over all axes. Of several axes, so does a case of every value that would be left out.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.split("[", 1)[0], []).append(item)
    for cases in tests.values():
        seen: set[tuple[int, int]] = set()
        places = _places(cases)
        every = cases[0].get_closest_marker("sample").args[0]
        kept = [sum(place) % every == 0 for place in places]
        for stays, place in zip(kept, places, strict=True):
            if stays:
                seen.update(enumerate(place))
        for item, stays, place in zip(cases, kept, places, strict=True):
            if not stays and (len(place) == 1 or seen.issuperset(enumerate(place))):
                item.add_marker(pytest.mark.slow)
            seen.update(enumerate(place))


#: Slow cases of one test that ``.ci/run`` runs at most; all of them: ``make test-matrix``.
MOST_SLOW = 4


def thin_matrices(items: list[pytest.Item]) -> None:
    """Mark slow cases beyond :data:`MOST_SLOW` of a test as ``matrix``; their names decide which.

    All cases of a test with ``@pytest.mark.sample(n, whole=True)`` stay.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("matrix") is not None:
            item.add_marker(pytest.mark.slow)
            continue
        sample = item.get_closest_marker("sample")
        whole = sample is not None and sample.kwargs.get("whole")
        if item.get_closest_marker("slow") is not None and hasattr(item, "callspec") and not whole:
            tests.setdefault(item.nodeid.split("[", 1)[0], []).append(item)
    for cases in tests.values():
        cases.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        for item in cases[MOST_SLOW:]:
            item.add_marker(pytest.mark.matrix)


def _places(cases: list[Any]) -> list[list[int]]:
    """The place of each case on each axis; names that are given together are one axis, a fixture with params is one."""
    given = [mark.args[0] for mark in cases[0].iter_markers("parametrize")]
    together = [
        [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        for names in given
    ]
    repeated = {name for names in together for name in names[1:]}
    axes = []
    for name in sorted(set(cases[0].callspec.params) - repeated):
        known: dict[int, int] = {}  # pytest hands out the same object for the same value
        axes.append([known.setdefault(id(case.callspec.params[name]), len(known)) for case in cases])
    return [list(places) for places in zip(*axes, strict=True)]
