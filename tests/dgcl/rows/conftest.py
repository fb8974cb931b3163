"""Every test of one device's view computes in float64."""

from collections.abc import Iterator

import pytest

from tests.dgcl.rows.harness import doubles


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with doubles():
        yield
