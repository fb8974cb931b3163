"""Every test of one device's view computes in float64."""

import pytest

from tests.support.rows_harness import doubles


@pytest.fixture(autouse=True)
def _float64():
    with doubles():
        yield
