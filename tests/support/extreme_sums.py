"""What :mod:`tests.dgcl.aggregation.test_extremes` shares with other tests."""

import functools

import numpy as np
import torch
from torch import Tensor

import dgcl
from tests.support.aggregator import (
    CASE_BY_NAME,
    WIDTH,
    Results,
    connect,
    features,
)
from tests.support.awkward import Case


def with_ties(case: Case) -> Tensor:
    """Few values, many equal; NaN and both infinities among them."""
    x = features(case.num_nodes, WIDTH).round()
    x[::7, 0] = torch.inf
    x[::5, 1] = -torch.inf
    x[::9, 2] = torch.nan
    x[:, 3] = -torch.inf
    x[::2, 4] = -0.0  # equal to 0.0
    return x


@functools.cache
def expected(name: str, reduce: str) -> Results:
    """Of the product of the extremes with weights."""
    case = CASE_BY_NAME[name]
    x, weight = with_ties(case), features(case.num_nodes, WIDTH, seed=3)
    y, gradient = torch.zeros_like(x), torch.zeros_like(x)
    for v in range(case.num_nodes):
        tails = np.unique(case.edges[0][case.edges[1] == v]).tolist()
        for c in range(WIDTH if tails else 0):
            value = {tail: x[tail, c].item() for tail in tails}
            if reduce == "min":
                value = {tail: -each for tail, each in value.items()}
            best = max(tails, key=lambda tail: (value[tail] != value[tail], value[tail]))
            nans = [tail for tail in tails if value[tail] != value[tail]]
            best = nans[0] if nans else best  # the first of equals: tails ascend
            y[v, c] = x[best, c]
            gradient[best, c] += weight[v, c]
    return {"y": y, "x": gradient}


def reduced(comm: dgcl.Communicator, case: Case, reduce: str) -> Results:
    x = comm.dispatch_features(with_ties(case)).requires_grad_()
    y = comm.aggregator(reduce)(x)  # type: ignore[arg-type]
    y.backward(comm.dispatch_features(features(case.num_nodes, WIDTH, seed=3)))
    return {"y": comm.collect(y.detach(), None), "x": comm.collect(x.grad, None)}


def on_rank(name: str, world_size: int, edges: str, channel: str = "auto") -> list[Results]:
    case = CASE_BY_NAME[name]
    comm = connect(case, world_size, edges, channel=channel)
    return [reduced(comm, case, reduce) for reduce in ("max", "min")]


def assert_expected(ranks: list[list[Results]], name: str):
    for found in ranks:
        for each, reduce in zip(found, ("max", "min"), strict=True):
            torch.testing.assert_close(each, expected(name, reduce), rtol=1e-14, atol=1e-14, equal_nan=True)
