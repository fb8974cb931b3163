"""Convolutions give what PyG's layers of the same names give on one device, with the same parameters.

Training: logits, losses and parameters after several Adam steps at 1e-10, for every placement of edges, both orders,
and constant inputs, for which sums are counted.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.aggregation.operation import Operation
from tests.support.convolutions import (
    CASE_BY_NAME,
    COUNT,
    OURS,
    WIDTHS,
    assert_equal_runs,
    features,
    initial,
    reference,
    train,
)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "order", ["auto", "multiply"]
)  # widths rise and fall: auto aggregates first, then last
@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("edges", ["halo", "tail", "cover"])
@pytest.mark.parametrize(
    "name", ["directed", "self-loops", "multi-edges", "isolated-vertices", "fewer-vertices-than-ranks"]
)
@pytest.mark.parametrize("layer", [layer for layer in OURS if layer != "sage-max"])
def test_training_is_that_of_one_device(layer, name, edges, world_size, order):
    wanted = reference(layer, name)
    for found, _ in dgcl.launch(train, world_size, layer, name, world_size, edges, order, False):
        assert_equal_runs(found, wanted)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", ["directed", "isolated-vertices"])
def test_training_with_maxima_is_that_of_one_device(name, world_size):
    """Features are continuous, so no two elements are equal."""
    wanted = reference("sage-max", name)
    for found, _ in dgcl.launch(train, world_size, "sage-max", name, world_size, "halo", "auto", False):
        assert_equal_runs(found, wanted)


@pytest.mark.parametrize("edges", ["halo", "cover"])
@pytest.mark.parametrize("layer", ["gcn", "sage", "gin"])
def test_constant_inputs_are_summed_once(layer, edges, monkeypatch):
    """Of two layers the second alone is summed, once forward and once backward: 2 (L - 1) sums in a step."""
    run = Operation.run

    def counted(self: Operation, x: Tensor, transport: Any) -> Any:
        rank = transport_rank(transport)
        COUNT[rank] = COUNT.get(rank, 0) + 1
        return run(self, x, transport)

    monkeypatch.setattr(Operation, "run", counted)
    wanted = reference(layer, "directed")
    for found, sums in dgcl.launch(train, 3, layer, "directed", 3, edges, "auto", True):
        assert_equal_runs(found, wanted)
        assert sums == [3, 2, 2]


def transport_rank(transport: Any) -> int:
    return int(transport.runtime.rank)


def test_a_product_before_maxima_is_refused():
    with pytest.raises(ValueError, match="order must be 'auto' or 'aggregate' with aggr='max'"):
        dgcl.nn.SAGEConv(2, 2, aggr="max", order="multiply")


def evaluate_first(layer: str, edges: str) -> tuple[Tensor, Tensor]:
    """Gradients of a layer's parameters, after evaluations and without."""
    case = CASE_BY_NAME["self-loops"]
    found = []
    for first in (True, False):
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(2), strategy=edges)
        conv = OURS[layer](*WIDTHS[:2]).double()
        conv.load_state_dict({name[2:]: value for name, value in initial(layer).items() if name[0] == "0"})
        x = comm.dispatch_features(features(case.num_nodes))
        constant = comm.aggregator().constant(x)
        if first:
            with torch.inference_mode():
                conv(constant)
                conv(x)
        (conv(constant).square().sum() + conv(x.requires_grad_()).square().sum()).backward()
        gradients = [parameter.grad.flatten() for parameter in conv.parameters()]
        found.append(torch.cat([*gradients, x.grad.flatten()]))
    return found[0], found[1]


@pytest.mark.parametrize("edges", ["halo", "cover"])
@pytest.mark.parametrize("layer", ["gcn", "sage", "gin"])
def test_training_follows_evaluation_in_inference_mode(layer, edges):
    """What was aggregated and normalised meanwhile is kept, and goes into backwards."""
    initial(layer)  # here, and not in two threads that seed torch
    for after, without in dgcl.launch(evaluate_first, 2, layer, edges):
        assert after.equal(without)
