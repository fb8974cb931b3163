"""The code of docs/frameworks.md that stands for itself, run as it stands there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dgcl
from tests.dgcl.awkward import CASES, Case

DOCS = Path(__file__).resolve().parents[3] / "docs"


def block(page: str, word: str) -> str:
    """The only block of Python on a page that has the word."""
    (found,) = (
        code for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S) if word in code
    )
    return found


def linear(seed: int, *widths: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(*widths), nn.Tanh()).double()


def sums(case: Case, values: Tensor) -> Tensor:
    """Over the in-edges of each vertex of the whole graph."""
    return values.new_zeros(case.num_nodes, values.shape[1]).index_add(
        0, torch.from_numpy(case.edges[1]), values
    )


def meshgraphnet(case: Case, x: Tensor, e: Tensor, names: dict[str, Any]) -> Tensor:
    sources, heads = torch.from_numpy(case.edges)
    for edge_mlp, node_mlp in names["layers"]:
        e = e + edge_mlp(torch.cat([x[sources], x[heads], e], 1))
        x = x + node_mlp(torch.cat([x, sums(case, e)], 1))
    return x


def graph_norm(case: Case, x: Tensor, e: Tensor, names: dict[str, Any]) -> Tensor:
    out: Tensor = names["norm"](x)
    return out


def norm_of_pyg() -> nn.Module:
    norm = pytest.importorskip("torch_geometric.nn").GraphNorm(4).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.linspace(0.5, 1.5, 4))
    return norm


BLOCKS: dict[str, tuple[str, Callable[..., Tensor], Callable[[Case], dict[str, Any]]]] = {
    "edges with rows": (
        "edge_mlp",
        meshgraphnet,
        lambda case: {"layers": [(linear(k, 11, 3), linear(k + 9, 7, 4)) for k in range(2)]},
    ),
    "GraphNorm": ("mean_scale", graph_norm, lambda case: {"norm": norm_of_pyg()}),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_blocks_are_what_they_say(case: Case, name: str):
    word, whole, make = BLOCKS[name]
    names, code = make(case), block("frameworks.md", word)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.num_nodes, 4, dtype=torch.float64, generator=generator)
    e = torch.randn(case.edges.shape[1], 3, dtype=torch.float64, generator=generator)
    x_alone = x.clone().requires_grad_()
    expected = whole(case, x_alone, e, names)
    (expected**3).sum().backward()

    def rank() -> tuple[Tensor | None, Tensor | None]:
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(3))
        own = comm.dispatch_features(x).requires_grad_()
        here = {**names, "x": own, "comm": comm, "g": comm.local_graph("csr"), "edge_features": e}
        exec(code, {"torch": torch, "dgcl": dgcl}, here)
        (here["x"] ** 3).sum().backward()
        return comm.collect(here["x"].detach(), None), comm.collect(own.grad, None)

    for found, gradient in dgcl.launch(rank, 3):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, x_alone.grad, rtol=1e-10, atol=1e-10)
