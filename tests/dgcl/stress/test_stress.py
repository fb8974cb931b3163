"""Random calls under random delays, in three worlds of more ranks than cores."""

import pytest

import dgcl
from tests.dgcl.stress.run import make_problems, play, stress
from tests.support.samples import matrix, slow

pytestmark = pytest.mark.xdist_group("alone")


def test_some_seconds_with_four_ranks():
    outcome = stress(4, 2.0, seed=3)
    assert outcome.wrong == []
    assert outcome.calls > 20


@pytest.mark.parametrize("num_ranks", [8, slow(16)])
def test_threads(num_ranks: int):
    for calls, *_, wrong in dgcl.launch(play, num_ranks, make_problems(num_ranks, 51), 2.0, 51):
        assert wrong == []
        assert calls > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_ranks, seconds",
    [(16, 8.0), *(matrix(*each) for each in ((8, 10.0), (32, 20.0)))],
)
def test_many_ranks(num_ranks: int, seconds: float):
    outcome = stress(num_ranks, seconds, seed=num_ranks)
    assert outcome.wrong == []
    assert outcome.calls > seconds
    assert outcome.steps > 50 * seconds
