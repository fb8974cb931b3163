"""Training with replicas gives the losses, logits, gradients and parameters of one device.

(DGL, PyG, plain torch) x layers x awkward graphs x machines of equal and unequal size: five Adam steps in float64
at 1e-10. The input's gradient too, summed over the copies of each vertex.
"""

import importlib.util

import pytest
import torch

import dgcl
from tests.dgcl.equivalence import ARCHITECTURES, CASE_BY_NAME, Run, assert_equal_runs, reference
from tests.dgcl.replication.machines import LAYOUTS, machines
from tests.dgcl.replication.training import LAYERS, on_rank
from tests.samples import sampled


def _require(architecture: str):
    name = {"dgl": "dgl", "pyg": "torch_geometric", "torch": "torch"}[architecture.split("-")[0]]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def train(architecture: str, case: str, layout: str, hops: int, poison: float | None = None) -> list[Run]:
    """The runs of all ranks, as threads."""
    topology = machines(LAYOUTS[layout])
    world_size = topology.num_devices
    return dgcl.launch(on_rank, world_size, architecture, case, topology, world_size, hops, poison)


def hops_of(architecture: str) -> int:
    """The layers; PyG's GCN exchanges once more before, for the degrees in its weights."""
    return LAYERS + (architecture == "pyg-gcn")


NAMES = list(CASE_BY_NAME)


@pytest.mark.parametrize(
    "architecture, layout",
    sampled(ARCHITECTURES, LAYOUTS, keep=lambda row, column: row % len(LAYOUTS) == column),
)
def test_threads(architecture: str, layout: str):
    """Every kind of layer on every layout, and every graph on every layout; all triples would take minutes."""
    row, column = list(ARCHITECTURES).index(architecture), list(LAYOUTS).index(layout)
    case = NAMES[(row + 4 * column) % len(NAMES)]
    _require(architecture)
    expected = reference(architecture, case)
    runs = train(architecture, case, layout, hops_of(architecture))
    for run in runs:
        assert_equal_runs(run, expected)
    for run in runs[1:]:
        assert all(mine.equal(first) for mine, first in zip(run.parameters, runs[0].parameters, strict=True))


@pytest.mark.slow
def test_processes(rank_pool):
    expected = reference("torch-sage", "directed")
    topology = machines(LAYOUTS["two-of-two"])
    for run in rank_pool(4).run(on_rank, "torch-sage", "directed", topology, 4, LAYERS):
        assert_equal_runs(run, expected)


@pytest.mark.parametrize("poison", [1e6, -1e150])
@pytest.mark.parametrize("architecture", ["torch-gcn", "torch-sage"])
def test_what_the_last_ring_computes_reaches_nobody(architecture: str, poison: float):
    """Not losses, logits, gradients or parameters, however wrong it is, as long as it is finite."""
    expected = reference(architecture, "directed")
    for run in train(architecture, "directed", "two-of-two", LAYERS, poison):
        assert_equal_runs(run, expected)


def test_not_even_a_nan_reaches_a_logit_or_a_loss():
    """It does reach gradients, as 0 * NaN: why layers must be finite on copies without in-edges."""
    expected = reference("torch-sage", "directed").steps[0]
    for run in train("torch-sage", "directed", "two-of-two", LAYERS, float("nan")):
        torch.testing.assert_close(run.steps[0].loss, expected.loss)
        torch.testing.assert_close(run.steps[0].logits, expected.logits)
        gradients = [gradient for gradient in run.steps[0].gradients if gradient is not None]
        assert any(gradient.isnan().any() for gradient in gradients)


def test_too_few_hops_are_felt():
    """So the tests above would see a ring that is missing."""
    expected = reference("torch-sage", "directed")
    run = train("torch-sage", "directed", "two-of-two", LAYERS - 1)[0]
    with pytest.raises(AssertionError, match="loss of step 0"):
        assert_equal_runs(run, expected)


def test_more_hops_than_layers_are_right_too():
    expected = reference("torch-gcn", "multi-edges")
    for run in train("torch-gcn", "multi-edges", "in-turns", LAYERS + 2):
        assert_equal_runs(run, expected)
