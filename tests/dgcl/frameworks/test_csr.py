"""dgcl.frameworks.csr: sums, means and softmaxes over edges, against a loop over the whole graph."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dgcl.frameworks import local_graph
from dgcl.frameworks.csr import CSRLocalGraph
from dgcl.frameworks.csr_ops import build_adjacency, edge_scores
from tests.support.awkward import CASES, Case
from tests.support.samples import named, sampled


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def rows(case: Case, *trailing: int) -> Tensor:
    return torch.randn(
        case.num_nodes, *trailing, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )


def edge_values(case: Case, *trailing: int) -> Tensor:
    shape = (case.edges.shape[1], *trailing)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loop_sum(case: Case, x: Tensor, weight: Tensor | None = None) -> Tensor:
    out = torch.zeros_like(x)
    for edge, (source, head) in enumerate(case.edges.T.tolist()):
        out[head] += x[source] if weight is None else weight[edge].view(-1, *[1] * (x.dim() - 2)) * x[source]
    return out


def each_rank(case: Case, world_size: int = 3) -> list[tuple[CSRLocalGraph, Tensor, Tensor, Tensor]]:
    """Each rank's graph with its local ids, owned ids and edge ids."""
    return [
        (
            local_graph("csr", local),
            *map(torch.from_numpy, (local.local_ids, local.owned_ids, local.edge_ids)),
        )
        for local in case.local_graphs(world_size)
    ]


@pytest.mark.parametrize("trailing", [(), (4,), (2, 3), (0,)], ids=str)
def test_sum(case, trailing):
    x = rows(case, *trailing)
    expected = loop_sum(case, x)
    for graph, local, owned, _ in each_rank(case):
        torch.testing.assert_close(graph.sum(x[local]), expected[owned])


@named("heads", {"one-weight": None, "one-head": 1, "two-heads": 2})
def test_weighted_sum(case, heads):
    x = rows(case, heads or 2, 3)
    weight = edge_values(case, *(() if heads is None else (heads,)))
    expected = loop_sum(case, x, weight)
    for graph, local, owned, edges in each_rank(case):
        torch.testing.assert_close(graph.sum(x[local], weight[edges]), expected[owned])


def test_mean_is_zero_where_there_is_no_neighbour(case):
    x = rows(case, 3)
    degrees = torch.bincount(torch.from_numpy(case.edges[1]), minlength=case.num_nodes)
    expected = loop_sum(case, x) / degrees.clamp(min=1)[:, None]
    for graph, local, owned, _ in each_rank(case):
        torch.testing.assert_close(graph.mean(x[local]), expected[owned])


@pytest.mark.parametrize("trailing", [(), (2,)], ids=str)
def test_softmax_over_the_in_edges(case, trailing):
    scores = edge_values(case, *trailing)
    expected = torch.empty_like(scores)
    heads = torch.from_numpy(case.edges[1])
    for head in range(case.num_nodes):
        expected[heads == head] = scores[heads == head].softmax(0)
    for graph, _, _, edges in each_rank(case):
        torch.testing.assert_close(graph.softmax(scores[edges]), expected[edges])


@named(
    "scores, expected",
    {
        "none": ([-torch.inf] * 3, [0.0] * 3),
        "some": ([-torch.inf, 1.0, 1.0], [0.0, 0.5, 0.5]),
        "nan": ([torch.nan, 0.0, 1.0], [torch.nan] * 3),
        "infinite": ([torch.inf, 0.0, 1.0], [torch.nan] * 3),
    },
)
def test_softmax_of_what_is_not_finite(scores, expected):
    edges = build_adjacency(torch.tensor([0, 3, 3]).int(), torch.arange(3).int(), 3)
    graph = CSRLocalGraph(edges, *[torch.arange(3)] * 4)
    given = torch.tensor(scores).requires_grad_()
    out = graph.softmax(given)
    torch.testing.assert_close(out, torch.tensor(expected), equal_nan=True)
    (out * torch.arange(3.0)).sum().backward()
    assert given.grad is not None
    assert given.grad.isfinite().all() == torch.tensor(expected).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@named("shape", {"1x7": (1, 7), "4x32": (4, 32), "3x45": (3, 45)})
def test_dots_and_scores_of_both_ends(shape, dtype):
    """And their gradients, of 16-bit rows in float32, against a row for each edge in float64."""
    graph, local, _, _ = each_rank(CASES[2], world_size=2)[0]
    x = rows(CASES[2], *shape)[local].to(dtype).requires_grad_()
    vector = torch.linspace(-1, 1, shape[0] * shape[1]).view(shape).to(dtype).requires_grad_()
    y = x[: graph.num_owned].detach().flip(1).requires_grad_()
    ends = graph.at_heads(y.double()), graph.at_sources(x.double())
    wanted = [
        (ends[0] * ends[1]).sum(-1),
        (functional.leaky_relu(ends[0] + ends[1], 0.2) * vector.double()).sum(-1),
    ]
    found = [graph.dots(y, x), edge_scores(y, x, vector, 0.2, graph.edges)]
    rtol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.dtype == torch.promote_types(dtype, torch.float32)
        atol = rtol * float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=min(atol, 1e-4 * atol / rtol))
        inputs = (y, x, vector)[: 2 + number]
        weight = torch.arange(1.0, one.numel() + 1).view(one.shape).sin()
        for grad, exact in zip(
            torch.autograd.grad(one, inputs, weight.to(one.dtype)),
            torch.autograd.grad(other, inputs, weight.double(), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(grad, exact, rtol=0, atol=rtol * float(exact.abs().max()))


def test_edges_and_their_ends(case):
    x = rows(case, 2)
    for graph, local, owned, edges in each_rank(case):
        tails, heads = torch.from_numpy(case.edges[:, edges.numpy()].reshape(2, -1))
        assert graph.at_sources(x[local]).equal(x[tails])
        assert graph.at_heads(x[owned]).equal(x[heads])
        assert local[graph.sources].equal(tails)
        assert owned[graph.heads].equal(heads)
        assert graph.indptr.tolist() == [
            0,
            *torch.bincount(graph.heads, minlength=graph.num_owned).cumsum(0).tolist(),
        ]


GRADIENTS = {
    "sum": lambda graph, x, w, scores: graph.sum(x),
    "weighted-sum": lambda graph, x, w, scores: graph.sum(x, w),
    "weighted-heads": lambda graph, x, w, scores: graph.sum(x, scores),
    "mean": lambda graph, x, w, scores: graph.mean(x),
    "softmax": lambda graph, x, w, scores: graph.softmax(scores),
    "at_sources": lambda graph, x, w, scores: graph.at_sources(x),
    "at_heads": lambda graph, x, w, scores: graph.at_heads(x[: graph.num_owned]),
    "sum_edges": lambda graph, x, w, scores: graph.sum_edges(scores),
    "dots": lambda graph, x, w, scores: graph.dots(x[: graph.num_owned], x),
    "gatv2": lambda graph, x, w, scores: edge_scores(
        x[: graph.num_owned].sin(), x, torch.tensor([[2.0], [-3.0]]).double(), 0.2, graph.edges
    ),
    "gatv2-edges": lambda graph, x, w, scores: edge_scores(
        x[: graph.num_owned].sin(), x, x[0], 0.2, graph.edges, x[1:2].sin(), w[:, None]
    ),
}

#: Which of (x, w, scores) each depends on.
USED = {
    "sum": "x",
    "weighted-sum": "xw",
    "weighted-heads": "xs",
    "mean": "x",
    "softmax": "s",
    "at_sources": "x",
    "at_heads": "x",
    "sum_edges": "s",
    "dots": "x",
    "gatv2": "x",
    "gatv2-edges": "xw",
}


@pytest.mark.parametrize(
    "which, name",
    sampled([1, 2, 6], GRADIENTS, keep=lambda which, name: name % 6 == 2 * which),
)
def test_first_and_second_derivatives(name, which):
    graph, local, _, edges = each_rank(CASES[which], world_size=4)[2]
    x, w, scores = (
        rows(CASES[which], 2, 1)[local],
        edge_values(CASES[which])[edges],
        edge_values(CASES[which], 2)[edges],
    )
    # Only what the sum depends on: the check's work grows with the square of the number of inputs.
    inputs = tuple(
        each.clone().requires_grad_()
        for each, key in zip((x, w, scores), "xws", strict=True)
        if key in USED[name]
    )

    def run(*args: Tensor) -> Tensor:
        given = iter(args)
        picked = [
            next(given) if key in USED[name] else each
            for each, key in zip((x, w, scores), "xws", strict=True)
        ]
        out: Tensor = GRADIENTS[name](graph, *picked)
        return out

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_sixteen_bit_floats_are_summed_in_float32(dtype):
    case = CASES[7]  # the hub reads 25 rows
    x = rows(case, 3).to(dtype)
    expected = loop_sum(case, x.float())
    for graph, local, owned, _ in each_rank(case):
        found = graph.sum(x[local])
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected[owned].to(dtype))


def test_complex_numbers_are_summed(case):
    values, weight = torch.complex(edge_values(case, 2), edge_values(case, 2) - 3), torch.tensor(1 + 2j)
    expected = torch.zeros(case.num_nodes, 2, dtype=values.dtype)
    for edge, head in enumerate(case.edges[1].tolist()):
        expected[head] += torch.complex(values[edge].real, -values[edge].imag)
    for graph, _, owned, edges in each_rank(case):
        own = values[edges].requires_grad_()
        found = graph.sum_edges(own.conj())  # a lazy view of its memory
        torch.testing.assert_close(found, expected[owned])
        (found * weight).real.sum().backward()  # of 1 Re(v) + 2 Im(v)
        torch.testing.assert_close(own.grad, torch.full_like(values[edges], 1 + 2j))


@pytest.mark.parametrize("kind", ["sum", "weighted-sum", "mean", "sum_edges"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_autocast_changes_nothing(dtype, kind):
    case = CASES[1]
    for graph, local, _, edges in each_rank(case):
        x = rows(case, 2, 2)[local].to(dtype).requires_grad_()
        weight, scores = (
            edge_values(case, *trailing)[edges].float().requires_grad_() for trailing in ((), (2,))
        )
        expected = GRADIENTS[kind](graph, x, weight, scores)
        with torch.autocast("cpu", torch.bfloat16):
            found = GRADIENTS[kind](graph, x, weight, scores)
            found.sum().backward()
        assert found.dtype == expected.dtype
        assert found.equal(expected)


def test_the_mean_of_a_hub_fits_where_its_sum_does_not():
    case = CASES[7]  # the hub reads 25 rows
    for graph, local, _, _ in each_rank(case):
        found = graph.mean(torch.full((len(local), 1), 6e4, dtype=torch.float16))
        assert found[graph.in_degrees > 0].eq(6e4).all()


@named(
    "call, message",
    {
        "rows": (lambda graph: graph.sum(torch.zeros(2, 3)), r"x_all must hold \d+ rows"),
        "scalar": (lambda graph: graph.mean(torch.tensor(1.0)), r"x_all must hold \d+ rows"),
        "owned": (lambda graph: graph.at_heads(torch.zeros(99)), r"x_owned must hold \d+ rows"),
        "scores": (lambda graph: graph.softmax(torch.zeros(3)), r"scores must hold \d+ rows"),
        "weights": (
            lambda graph: graph.sum(torch.zeros(graph.num_local, 3), torch.zeros(2)),
            r"edge_weight must hold \d+ rows",
        ),
        "heads": (
            lambda graph: graph.sum(torch.zeros(graph.num_local, 3), torch.zeros(graph.num_edges, 2)),
            r"edge_weight must have shape \(E,\), or \(E, H\)",
        ),
    },
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call(each_rank(CASES[0])[0][0])


@pytest.mark.parametrize("weight", ["none", "constant", "learned"])
def test_rows_are_kept_only_for_gradients_of_weights(weight: str):
    """Of what autograd saves, rows of layers are the bulk: a sum with constant weights needs none of them."""
    graph, local, _, edges = each_rank(CASES[1], world_size=2)[0]
    x = rows(CASES[1], 7)[local].requires_grad_()
    given = None if weight == "none" else edge_values(CASES[1])[edges].requires_grad_(weight == "learned")
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        out = graph.sum(x, given)
    expected = {"none": [], "constant": [(graph.num_edges,)], "learned": [x.shape, (graph.num_edges,)]}
    assert [tuple(tensor.shape) for tensor in saved] == [tuple(shape) for shape in expected[weight]]
    out.sum().backward()
    assert x.grad is not None


@named("weighted", {"plain": False, "weighted": True})
def test_sums_compile_in_one_piece(weighted: bool):
    graph, local, _, edges = each_rank(CASES[1], world_size=2)[0]

    def gradients(compiled: bool) -> list[Tensor]:
        x = rows(CASES[1], 7)[local].requires_grad_()
        weight = edge_values(CASES[1])[edges].requires_grad_() if weighted else None

        def step(x: Tensor, weight: Tensor | None) -> Tensor:
            return (graph.sum(x * 2, weight) ** 2).sum()

        run = torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
        run(x, weight).backward()
        return [tensor.grad for tensor in (x, weight) if tensor is not None]

    torch.testing.assert_close(gradients(True), gradients(False), rtol=0, atol=0)


@pytest.mark.slow
def test_what_its_operators_import_is_there_before_the_first_call():
    """It takes seconds, in which peers would wait for this rank between two exchanges."""
    code = (
        "import sys, torch, dgcl; dgcl.init(); comm = dgcl.build_comm_info(torch.tensor([[0, 1], [1, 0]]))\n"
        "comm.local_graph('csr'); assert 'torch._dynamo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
