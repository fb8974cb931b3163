"""What aggregations take, keep and refuse, for every placement; their sums and gradients: ``test_windows.py``.

========================  =====================================================================================
what                      judged by
========================  =====================================================================================
any shape, 16 bits        ``A @ x`` in float64, A dense, made from the list of edges
weights of past steps     objects that live
what is refused           the message, on every rank
========================  =====================================================================================
"""

import functools
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
import dgcl.nn
from dgcl.aggregation.operation import Operation
from tests.support.aggregator import (
    CASE_BY_NAME,
    EXACT,
    PLACEMENTS,
    WIDTH,
    connect,
    dense,
    features,
    weights_of,
)
from tests.support.awkward import CASES, Case
from tests.support.ranks import said


def of_any_shape(case: Case) -> list[Tensor]:
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (41,), (602,), (2, 3), (0, 3)]
    parts = [[features(case.num_nodes, width, seed=seed) for seed in (0, 1)] for width in (1, 2, 3)]
    return [
        *(features(case.num_nodes, *shape) for shape in shapes),
        *(torch.complex(*each) for each in parts),
    ]


def aggregates_of_any_shape(edges: str, name: str, world_size: int) -> list[Tensor]:
    case = CASE_BY_NAME[name]
    comm = connect(case, world_size, edges)
    aggregate = comm.aggregator()
    inputs = [comm.dispatch_features(x) for x in of_any_shape(case)]
    negated = inputs[-1].conj().imag  # in memory it is not what it says
    assert negated.is_neg()
    inputs += [inputs[6].flatten(1)[:, ::2], negated]
    found = [aggregate(x) for x in inputs]
    assert all(aggregate(x).equal(y) for x, y in zip(inputs, found, strict=True))
    return [comm.collect(y, None) for y in found]


@pytest.mark.parametrize(
    "edges, name, world_size",
    [
        *((edges, "directed", 2) for edges in PLACEMENTS),
        *((edges, "fewer-vertices-than-ranks", 5) for edges in PLACEMENTS),
        ("grid:1,1,3", "directed", 3),
        ("grid:1,1,4", "directed", 4),
        ("grid:2,2,2", "directed", 8),
    ],
)
def test_any_shape_and_strides(edges, name, world_size):
    case = CASE_BY_NAME[name]
    matrix = dense(case, "sum", None)
    inputs = of_any_shape(case)
    inputs += [inputs[6].flatten(1)[:, ::2], -inputs[-1].imag]
    for rank in dgcl.launch(aggregates_of_any_shape, world_size, edges, name, world_size):
        for x, found in zip(inputs, rank, strict=True):
            flat = x.flatten(1) if x.dim() > 1 else x[:, None]
            wanted = (matrix.to(flat.dtype) @ flat).reshape(x.shape)
            torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)


def in_16_bits(edges: str, dtype: torch.dtype) -> Tensor:
    case = CASE_BY_NAME["hub"]
    comm = connect(case, 4, edges)
    x = comm.dispatch_features(features(case.num_nodes, WIDTH).to(dtype) + 8000)
    return comm.collect(comm.aggregator("mean")(x), None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("edges", [*PLACEMENTS, "grid:1,1,4", "grid:2,2,1", "grid:1,4,1"])
def test_means_in_16_bits_are_rounded_a_few_times_only(edges, dtype):
    """The hub's sum would be beyond float16: partial sums are divided before they travel."""
    case = CASE_BY_NAME["hub"]
    x = (features(case.num_nodes, WIDTH).to(dtype) + 8000).double()
    wanted = dense(case, "mean", None) @ x
    for found in dgcl.launch(in_16_bits, 4, edges, dtype):
        torch.testing.assert_close(found.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=0)


def forget_learned_weights() -> int:
    older = [
        each for each in gc.get_objects() if type(each) is Operation
    ]  # of tests before, which may have failed
    case = CASE_BY_NAME["directed"]
    comm = connect(case, 1, "cover")
    x = comm.dispatch_features(features(case.num_nodes, 2))
    weight = comm.dispatch_edges(weights_of(case)).requires_grad_()
    aggregate = comm.aggregator(edge_weight=weight)
    made: list[weakref.ref[Operation]] = []
    for _ in range(3):
        out = aggregate(x)
        (out * out).sum().backward()
        made += [
            weakref.ref(each)
            for each in gc.get_objects()
            if type(each) is Operation and any(kept is not None for kept in each.weights)
        ]
    del out
    made = [each for each in made if not any(each() is old for old in older)]
    return sum(each() is not None for each in made)


def test_weights_of_past_steps_are_not_kept():
    """By counting references alone, without the collector of cycles, which looks at no tensor's bytes."""
    gc.collect()
    gc.disable()
    try:
        assert dgcl.launch(forget_learned_weights, 1) == [0]
    finally:
        gc.enable()


def refusals(edges: str) -> list[str]:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, 2, edges)
    x = comm.dispatch_features(features(case.num_nodes, 2))
    calls = [
        lambda: dgcl.graph_allgather(x),
        lambda: dgcl.graph_allgather_async(x),
        lambda: comm.local_graph("csr"),
        lambda: comm.aggregator("median"),  # type: ignore[arg-type]
        lambda: comm.aggregator(edge_weight=torch.ones(3)),
        lambda: comm.aggregator()(x[1:]),
        lambda: comm.aggregator()(x.int()),
        lambda: comm.aggregator().constant(x.clone().requires_grad_()),
        lambda: comm.aggregator("max", edge_weight=torch.ones(comm.local.num_edges)),
        lambda: comm.aggregator(edge_weight=torch.ones(comm.local.num_edges).requires_grad_()).constant(x),
        lambda: comm.aggregator().constant(x[1:]),
        lambda: comm.aggregator(edge_weight=[1.0]),  # type: ignore[arg-type]
        lambda: comm.aggregator()(x.to(torch.float8_e5m2)),
        lambda: dgcl.nn.GCNConv(2, 2)(x, torch.zeros(2, 3, dtype=torch.int64)),  # type: ignore[arg-type]
        lambda: comm.dispatch_features(features(case.num_nodes, 2), halo=True),
    ]
    return [said(call) for call in calls]


def test_what_cannot_be_is_refused():
    for texts in dgcl.launch(refusals, 2, "cover"):
        for text, name in zip(
            texts, ("graph_allgather", "graph_allgather_async", "local_graph"), strict=False
        ):
            assert text.startswith(f"{name} needs all in-edges")
            assert "comm.aggregator()" in text
            assert "strategy='halo'" in text
        assert texts[3].startswith("reduce must be one of sum, mean, max, min")
        assert texts[4].startswith("edge_weight must have shape")
        assert "num_owned" in texts[5]
        assert texts[6].startswith("x must be floating point")
        assert texts[7].startswith("x must not require a gradient")
        assert texts[8].startswith("edge_weight goes with sums and means")
        assert texts[9].startswith("edge_weight must not require a gradient with constant rows")
        assert "num_owned" in texts[10]
        assert texts[11].startswith("edge_weight must be a torch tensor")
        assert texts[12].startswith("x must be floating point of 16, 32 or 64 bits")
        assert texts[13].startswith("comm must be a dgcl.Communicator")
        assert texts[14].startswith("dispatch_features(halo=True) needs all in-edges")


def reduce_differently(reductions: list[str], weights: tuple[str, ...] = ("", "", "")) -> str:
    comm = connect(CASES[0], 3, "halo")
    kind = weights[comm.rank]
    weight = torch.ones(comm.local.num_edges, requires_grad=kind == "learned") if kind else None
    return said(lambda: comm.aggregator(reductions[comm.rank], edge_weight=weight))  # type: ignore[arg-type]


def aggregate_differently(edges: str, windows: bool, calls_before: int, one: str, others: str) -> str:
    """Rank 1 does ``one``: in layers, which connect no ranks, or where one rank takes another object."""
    comm = connect(CASE_BY_NAME["hub"], 3, edges, timeout=60.0)
    x = comm.dispatch_features(features(26, 3, dtype=torch.float32))
    ways: dict[str, Any] = {
        name: comm.aggregator(name, windows=3 if windows else None)
        if windows or "min" in (one, others)  # which no layer takes
        else functools.partial(dgcl.nn.SAGEConv(3, 3, name), comm=comm)
        for name in (one, others)
    }
    for _ in range(calls_before):
        for way in ways.values():
            way(x)
    return said(lambda: [ways[one if comm.rank == 1 else others](x) for _ in range(3)])


@pytest.mark.parametrize("calls_before", [0, 2])
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("edges", ["halo", "cover"])
def test_ranks_that_make_different_reductions_are_named(edges, windows, calls_before):
    pairs = [("sum", "mean")] if windows else [("sum", "mean"), ("max", "min")]
    for one, others in pairs:
        for text in dgcl.launch(aggregate_differently, 3, edges, windows, calls_before, one, others):
            for part in ("ranks make different calls", f"for a {one}", f"for a {others}", "rank 1 is in"):
                assert part in text


def test_ranks_that_ask_for_different_reductions_are_named():
    for text in dgcl.launch(reduce_differently, 3, ["mean", "mean", "sum"]):
        assert text == "reduce must be the same on every rank (got 'mean' on rank 0 and 'sum' on rank 2)"
    for text in dgcl.launch(reduce_differently, 3, ["sum"] * 3, ("constant", "learned", "constant")):
        assert text.startswith(
            "edge_weight must be the same on every rank (got 'constant' on rank 0 and 'learned'"
        )


@pytest.mark.parametrize("change", ["in place", "gradient"])
def test_constant_rows_that_change_are_noticed(change):
    def on_rank() -> str:
        comm = connect(CASES[0], 2, "cover")
        x = comm.dispatch_features(features(CASES[0].num_nodes, 2, dtype=torch.float32))
        conv, constant = dgcl.nn.GCNConv(2, 2), comm.aggregator().constant(x)
        conv(constant)
        x.add_(1) if change == "in place" else x.requires_grad_()
        return said(lambda: conv(constant))

    for text in dgcl.launch(on_rank, 2):
        assert text.startswith(
            "x was said to be constant, and was changed in place, or made to require a gradient"
        )


@pytest.mark.parametrize(
    "options, says",
    [
        ({"edges": "sideways"}, "strategy must be one of halo, tail, cover"),
        ({"edges": 3}, "strategy must be text such as 'cover'"),
    ],
)
def test_bad_placements_are_refused_on_every_rank(options, says):
    with pytest.raises((TypeError, ValueError), match=says):
        dgcl.launch(functools.partial(connect, CASES[0], 2, **options), 2)
