"""What has a first derivative alone refuses a second one, also where another path leads to the same rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dgcl
import dgcl.nn
from tests.support.aggregator import CASE_BY_NAME, connect, features, weights_of

CASE = CASE_BY_NAME["directed"]


def learned(comm: dgcl.Communicator) -> Callable[[Tensor], Tensor]:
    return comm.aggregator(edge_weight=comm.dispatch_edges(weights_of(CASE)).requires_grad_())


def largest(comm: dgcl.Communicator) -> Callable[[Tensor], Tensor]:
    return comm.aggregator("max")


def halo_alone(comm: dgcl.Communicator) -> Callable[[Tensor], Tensor]:
    return lambda x: dgcl.graph_allgather_async(x).wait()


def in_place(comm: dgcl.Communicator) -> Callable[[Tensor], Tensor]:
    return dgcl.nn.InPlaceGCN([3, 4, 3]).double()


def offloaded(comm: dgcl.Communicator) -> Callable[[Tensor], Tensor]:
    off, linear = dgcl.Offload(comm, chunks=2), nn.Linear(3, 3).double()
    return lambda x: off.layer(linear, x, aggregate="sum")


KINDS = {
    "an aggregation with learned weights": learned,
    "a maximum or minimum over edges": largest,
    "an exchange of halo rows alone": halo_alone,
    "InPlaceGCN": in_place,
    "Offload.layer": offloaded,
}


def differentiated(what: str) -> tuple[bool, str]:
    """Whether first derivatives are the same when they could be differentiated, and what a second one raises."""
    comm = connect(CASE, 2, "halo")
    function = KINDS[what](comm)
    x = comm.dispatch_features(features(CASE.num_nodes, 3)).requires_grad_()

    def first(**options: bool) -> Tensor:
        loss = function(x).tanh().square().sum() + (x**3).sum()
        (gradient,) = torch.autograd.grad(loss, x, **options)
        return gradient

    plain, gradient = first(), first(create_graph=True)
    with pytest.raises(RuntimeError) as raised:
        torch.autograd.grad(gradient.square().sum(), x)
    return torch.equal(plain, gradient), str(raised.value)


@pytest.mark.parametrize("what", KINDS)
def test_a_second_derivative_is_refused(what: str):
    said = f"{what} can be differentiated once (a second derivative was asked for)"
    assert dgcl.launch(differentiated, 2, what) == [(True, said)] * 2
