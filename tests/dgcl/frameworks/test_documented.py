"""Code of docs/one_device.md, run as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dgcl
from tests.support.awkward import CASES, Case

DOCS = Path(__file__).resolve().parents[3] / "docs"


def block(page: str, word: str) -> str:
    """The only block of Python on a page that has the word."""
    (found,) = (
        code for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S) if word in code
    )
    return found


def mlp(seed: int, *widths: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(*widths), nn.Tanh()).double()


def meshgraphnet(case: Case, x: Tensor, e: Tensor, layers: list[Any]) -> Tensor:
    sources, heads = torch.from_numpy(case.edges)
    for edge_mlp, node_mlp in layers:
        e = e + edge_mlp(torch.cat([x[sources], x[heads], e], 1))
        sums = e.new_zeros(case.num_nodes, e.shape[1]).index_add(0, heads, e)
        x = x + node_mlp(torch.cat([x, sums], 1))
    return x


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_edges_with_rows(case: Case):
    layers = [(mlp(k, 11, 3), mlp(k + 9, 7, 4)) for k in range(2)]
    code = block("one_device.md", "edge_mlp")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.num_nodes, 4, dtype=torch.float64, generator=generator)
    e = torch.randn(case.edges.shape[1], 3, dtype=torch.float64, generator=generator)
    x_alone = x.clone().requires_grad_()
    expected = meshgraphnet(case, x_alone, e, layers)
    (expected**3).sum().backward()

    def rank() -> tuple[Tensor | None, Tensor | None]:
        comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(3))
        own = comm.dispatch_features(x).requires_grad_()
        here = {
            "layers": layers, "x": own, "comm": comm, "g": comm.local_graph("csr"), "edge_features": e,
        }  # fmt: skip
        exec(code, {"torch": torch, "dgcl": dgcl}, here)
        (here["x"] ** 3).sum().backward()
        return comm.collect(here["x"].detach(), None), comm.collect(own.grad, None)

    for found, gradient in dgcl.launch(rank, 3):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, x_alone.grad, rtol=1e-10, atol=1e-10)
