"""dgcl.testing.assert_equivalent: right models pass, each kind of wrong one is told, the first cause first."""

import re

import pytest
import torch
from torch import Tensor, nn

import dgcl
import dgcl.nn
import dgcl.testing
from tests.dgcl.awkward import CASES
from tests.samples import named

CASE = CASES[0]
FEATURES = torch.randn(CASE.num_nodes, 3, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """Two rounds of sums over neighbours; ``wrong`` says what is broken on several ranks."""

    def __init__(self, comm: dgcl.Communicator, wrong: str = ""):
        super().__init__()
        self.comm, self.wrong, self.graph = comm, wrong, comm.local_graph("csr")
        self.first, self.act, self.second = nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)
        norm = nn.BatchNorm1d if wrong == "batch-norm" else dgcl.nn.BatchNorm
        self.norm = norm(4)
        self.drop = nn.Dropout(0.5) if wrong == "dropout" else dgcl.nn.Dropout(0.5)

    def gather(self, x: Tensor) -> Tensor:
        if self.wrong == "no-exchange":  # halo rows are zeros
            return torch.cat([x, x.new_zeros(self.comm.num_halo, x.shape[1])])
        return dgcl.graph_allgather(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(self.act(self.first(x))))
        x = self.second(self.graph.sum(self.gather(x)))
        if self.wrong == "gradient":
            x = x + 0.1 * (self.first.weight.sum() - self.first.weight.sum().detach()) * self.comm.rank
        return x[1:] if self.wrong == "rows" else x


def check(wrong: str = "", **options: object):
    dgcl.testing.assert_equivalent(lambda comm: Model(comm, wrong), CASE.graph, FEATURES, 3, **options)


@named(
    "options",
    {
        "plain": {},
        "float32": {"dtype": torch.float32},
        "part": {"steps": 1, "part": CASE.part(3)},
        "topology": {"topology": "uniform"},
    },
)
def test_a_right_model_passes(options):
    check(**options)


@pytest.mark.parametrize(
    "wrong, first",
    [
        ("no-exchange", r"step 1: second differs by up to .* rows, first in vertex \d+, of rank \d"),
        ("batch-norm", r"step 1: norm differs by up to .* of 26 rows"),
        ("dropout", "step 1: drop differs"),
        ("gradient", "step 1: the gradient of first.weight differs"),
    ],
)
def test_what_is_wrong_is_told(wrong, first):
    with pytest.raises(AssertionError, match=first) as caught:
        check(wrong)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("the model gives other numbers on 3 ranks than on one device (tolerance 1e-09")
    assert re.search(first, lines[1])
    assert len(lines) <= 14


def test_against_a_model_without_dgcl():
    """The sums of the whole graph as a dense product; a wrong one is told."""
    dense = torch.zeros(CASE.num_nodes, CASE.num_nodes, dtype=torch.float64)
    dense.index_put_(
        (torch.from_numpy(CASE.edges[1]), torch.from_numpy(CASE.edges[0])), torch.tensor(1.0).double(), True
    )

    class OnRanks(nn.Module):
        def __init__(self, graph):
            super().__init__()
            self.linear, self.graph = nn.Linear(3, 2), graph

        def forward(self, x: Tensor) -> Tensor:
            return self.graph.sum(dgcl.graph_allgather(self.linear(x)))

    class Alone(nn.Module):
        def __init__(self, matrix: Tensor):
            super().__init__()
            self.linear, self.matrix = nn.Linear(3, 2), matrix

        def forward(self, x: Tensor) -> Tensor:
            return self.matrix @ self.linear(x)

    def run(matrix: Tensor):
        dgcl.testing.assert_equivalent(
            lambda comm: OnRanks(comm.local_graph("csr")),
            CASE.graph,
            FEATURES,
            2,
            alone=lambda: Alone(matrix),
        )

    run(dense)
    with pytest.raises(AssertionError, match=r"step 1: the output differs .* of 26 rows"):
        run(dense.T)


def test_what_cannot_be_compared_is_refused():
    shared = nn.Linear(3, 2)
    for make, error, words in (
        (lambda comm: shared, ValueError, "model_fn must make a new model in each call"),
        (lambda comm: 5, TypeError, r"must return a torch.nn.Module \(got int\)"),
        (lambda comm: Model(comm, "rows"), ValueError, "rows must have num_owned = 26 rows on rank 0"),
        (lambda comm: nn.Linear(3, comm.world_size), ValueError, "must have the same parameters"),
    ):
        with pytest.raises(error, match=words):
            dgcl.testing.assert_equivalent(make, CASE.graph, FEATURES, 2)
    with pytest.raises(TypeError, match=r"must be a function that makes a model .* \(got a model\)"):
        dgcl.testing.assert_equivalent(shared, CASE.graph, FEATURES, 2)
    with pytest.raises(ValueError, match=r"one row for each of the 26 vertices \(got shape \(5, 3\)\)"):
        dgcl.testing.assert_equivalent(Model, CASE.graph, FEATURES[:5], 2)
    with pytest.raises(ValueError, match="ranks and steps must be at least 1"):
        dgcl.testing.assert_equivalent(Model, CASE.graph, FEATURES, 0)


def test_a_gradient_of_zero_is_no_difference():
    """A normalisation takes the bias before it away: its gradient is rounding alone, and not the same rounding."""
    dgcl.testing.assert_equivalent(
        lambda comm: nn.Sequential(nn.Linear(3, 4), dgcl.nn.BatchNorm(4), nn.Linear(4, 2)),
        CASE.graph,
        FEATURES,
        3,
    )
