"""Training with every row sent by collectives, between processes of one host."""

from collections.abc import Callable

import pytest

from tests.support.awkward import CASES
from tests.support.equivalence import ARCHITECTURES, assert_equal_runs, on_rank, reference
from tests.support.rank_pool import RankPool

PLAIN = [name for name in ARCHITECTURES if name.startswith("torch-")]


@pytest.mark.sample(9)
# On a chain rows are relayed, and their gradients added up on the way.
@pytest.mark.parametrize("shape", ["uniform", "chain"])
@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_every_awkward_graph(case: str, shape: str, rank_pool: Callable[[int], RankPool]):
    number = [each.name for each in CASES].index(case)
    architecture = PLAIN[number % len(PLAIN)]
    runs = rank_pool(3).run(on_rank, architecture, case, 3, shape, "float64", "collective")
    for run in runs:
        assert_equal_runs(run, reference(architecture, case))
