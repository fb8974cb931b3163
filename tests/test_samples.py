"""What is left of a big table every day."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.samples import mark_samples


class Case:
    """What a test item is to the sampler."""

    def __init__(self, every: int, **params: Any) -> None:
        self.nodeid = f"test.py::test[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = [pytest.mark.sample(every).mark]
        self.marks += [pytest.mark.parametrize(name, []).mark for name in params]
        self.slow = False

    def iter_markers(self, name: str) -> list[Any]:
        return [mark for mark in self.marks if mark.name == name]

    def get_closest_marker(self, name: str) -> Any:
        return next(iter(self.iter_markers(name)), None)

    def add_marker(self, mark: Any) -> None:
        self.slow |= mark.name == "slow"


@pytest.mark.parametrize("sizes, every, kept", [((6, 5, 4), 3, 40), ((4, 2), 4, 4), ((7,), 3, 3)])
def test_about_one_case_in_n_and_every_value(sizes: tuple[int, ...], every: int, kept: int):
    axes = {f"axis{i}": [f"value{j}" for j in range(size)] for i, size in enumerate(sizes)}
    cases = [Case(every, **dict(zip(axes, row, strict=True))) for row in itertools.product(*axes.values())]
    mark_samples(cases)
    stay = [case.callspec.params for case in cases if not case.slow]
    assert len(stay) == kept
    assert len(sizes) == 1 or all(
        {params[axis] for params in stay} == set(values) for axis, values in axes.items()
    )
