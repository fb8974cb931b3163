"""A minute of random calls under random delays, in three worlds of more ranks than cores."""

from __future__ import annotations

import pytest

from tests.dgcl.stress.run import stress

pytestmark = pytest.mark.xdist_group("alone")


def test_some_seconds_with_four_ranks() -> None:
    outcome = stress(4, 2.0, seed=3)
    assert outcome.wrong == []
    assert outcome.calls > 20


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [8, 16, 32])
def test_a_third_of_a_minute(num_ranks: int) -> None:
    outcome = stress(num_ranks, 20.0, seed=num_ranks)
    assert outcome.wrong == []
    assert outcome.calls > 20
    assert outcome.steps > 1000
