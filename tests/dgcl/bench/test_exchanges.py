"""The plain all-to-all brings the owners' bits and adds exactly, on awkward graphs, again and again."""

import pytest
import torch

import dgcl
from dgcl.bench import BASELINES, build_comm_info
from tests.dgcl.bench.ranks import both_ways, gradients
from tests.support.awkward import CASES
from tests.support.samples import sampled

NAMES = [case.name for case in CASES]


@pytest.mark.parametrize(
    "method, case", sampled([*BASELINES], NAMES, keep=lambda method, case: (method + case) % 3 == 0)
)
def test_exact(method: str, case: str, rank_pool):
    assert rank_pool(3).run(both_ways, case, method) == [[]] * 3


@pytest.mark.parametrize("method", BASELINES)
def test_gradients_are_those_of_the_plan(method: str, rank_pool):
    expected_loss, expected = rank_pool(3).run(gradients, "directed", "direct")[0]
    for loss, gradient in rank_pool(3).run(gradients, "directed", method):
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_gloo_between_threads_is_refused():
    with pytest.raises(ValueError, match=r"gloo.*processes of one torch\.distributed group"):
        dgcl.launch(both_ways, 2, "directed", "gloo")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"method must be one of auto, .*gloo.*did you mean 'gloo'"):
        build_comm_info(None, method="glow")
