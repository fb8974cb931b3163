"""Edges in other forms than PyG's: the centre in row 0, two vectors of ids, a dict of tensors."""

import pytest
import torch
from torch_geometric.data import Data

import dgcl
from tests.support.rows_harness import plain

X = torch.randn(20, 4)
EDGES = torch.randint(0, 20, (2, 80))


def summed(x, sources, targets):
    return torch.zeros_like(x).index_add_(0, targets, x[sources])


def run(data, call, options):
    def on_rank():
        given = dgcl.dispatch(data, **options)
        return type(given) is type(data), plain(call(given))

    expected = call(data)
    for same_kind, result in dgcl.launch(on_rank, 3):
        assert same_kind
        torch.testing.assert_close(result, expected)


class Passed(torch.autograd.Function):
    """It returns the edges that it was given."""

    @staticmethod
    def forward(ctx, x, edges):
        return x * 2, edges

    @staticmethod
    def backward(ctx, grad, _):
        return grad * 2, None


LOOPS, SOME = torch.arange(20).repeat(2, 1), torch.arange(0, 100, 3)
FIRST, PAIR = {"flow": "target_to_source"}, {"ends": {"_j": "source", "_i": "target"}}
DATA = Data(x=X, edge_index=EDGES)
BATCH = {"_positions": X, "_j": EDGES[0], "_i": EDGES[1], "w": torch.randn(80, 1)}


@pytest.mark.parametrize(
    "data, options, ends",
    [
        (DATA, FIRST, lambda data: data.edge_index.flip(0)),
        (DATA, FIRST, lambda data: data.edge_index[[1, 0]]),
        (DATA, FIRST, lambda data: (data.edge_index[1], data.edge_index[0])),
        (DATA, FIRST, lambda data: torch.stack([data.edge_index[1], data.edge_index[0]])),
        (DATA, FIRST, lambda data: data.edge_index.detach().int().long().unbind(0)[::-1]),
        (DATA, FIRST, lambda data: torch.cat([data.edge_index, LOOPS], 1).index_select(1, SOME).flip(0)),
        (DATA, FIRST, lambda data: data.edge_index[:, data.edge_index[1].argsort(stable=True)].flip(0)),
        (DATA, {}, lambda data: Passed.apply(data.x.clone().requires_grad_(), data.edge_index)[1]),
        ({"x": X, "edge_index": EDGES}, {}, lambda data: data["edge_index"]),
        (BATCH, PAIR, lambda data: (data["_j"], data["_i"])),
    ],
    ids=[
        "flip",
        "index",
        "unpacked",
        "stacked",
        "converted",
        "selected",
        "sorted",
        "function",
        "dict",
        "pair",
    ],
)
def test_sums_at_targets(data, options, ends):
    run(
        data,
        lambda data: summed(next(iter(data.values() if type(data) is dict else [data.x])), *ends(data)),
        options,
    )


@pytest.mark.parametrize(
    "data, options, message",
    [
        (DATA, {"flow": "inward"}, "flow must be 'source_to_target' or"),
        (DATA, {"ends": {"a": "source"}}, "ends must name the ids at sources and those at targets"),
        (DATA, PAIR, "data has no _i and no _j"),
        ({"energy": X}, {}, "a dict must have one of positions, pos, x, z"),
    ],
)
def test_what_does_not_fit(data, options, message):
    with pytest.raises(ValueError, match=message):
        dgcl.launch(lambda: dgcl.dispatch(data, **options), 2)


def test_a_compiled_function_of_numbers_is_not_tried():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, table, numbers):
            assert len(table) == 20  # as on one device: a kernel would read outside of fewer rows
            ctx.save_for_backward(numbers)
            return table[numbers.flip(0)]

        @staticmethod
        def backward(ctx, grad):
            (numbers,) = ctx.saved_tensors
            return grad.new_zeros(20, 4).index_add_(0, numbers.flip(0), grad), None

    def call(data):
        x = data.x.clone().requires_grad_()
        Reads.apply(x, data.number).pow(2).sum().backward()
        return x.grad

    def on_rank():
        data = dgcl.dispatch(Data(x=X, edge_index=EDGES, number=torch.arange(20) % 7))
        dgcl.distribute(torch.nn.Linear(1, 1))
        return plain(call(data))

    expected = call(Data(x=X, number=torch.arange(20) % 7))
    for result in dgcl.launch(on_rank, 2):
        torch.testing.assert_close(result, expected)


def test_a_scripted_function_that_sums_runs_as_python():
    @torch.jit.script
    def scattered(x: torch.Tensor, at: torch.Tensor, size: int):
        return torch.zeros([size, x.shape[1]], dtype=x.dtype).index_add(0, at, x)

    def on_rank():
        data = dgcl.dispatch(DATA)
        dgcl.distribute(torch.nn.Linear(1, 1))
        return plain(scattered(data.x[data.edge_index[0]], data.edge_index[1], 20))

    for result in dgcl.launch(on_rank, 2):
        torch.testing.assert_close(result, summed(X, *EDGES))
