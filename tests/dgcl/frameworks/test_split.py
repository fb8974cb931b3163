"""dgcl.frameworks.split: what its two parts do to the type of the rows; that they are a whole layer is in test_halo."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import dgcl
from tests.dgcl.awkward import CASES
from tests.samples import named

CASE = next(case for case in CASES if case.name == "multi-edges")


@pytest.mark.parametrize("verb", ["sum", "mean", "parts"])
@named("autocast", {"plain": False, "autocast": True})
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_sums_are_those_of_small_integers_in_any_type(dtype, autocast, verb) -> None:
    """Integers of a few bits have exact sums in 16 bits, so they and their gradients are those of float64."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(-4, 5, (CASE.num_nodes, 3), generator=generator).double()
    adjacency = torch.zeros(CASE.num_nodes, CASE.num_nodes, dtype=torch.float64)
    sources, heads = torch.from_numpy(CASE.edges)
    adjacency.index_put_((heads, sources), torch.ones(len(heads), dtype=torch.float64), accumulate=True)
    degrees = adjacency.sum(1, keepdim=True).clamp(min=1)
    expected = (adjacency @ whole) / (degrees if verb == "mean" else 1.0)
    expected_grad = (adjacency / (degrees if verb == "mean" else 1.0)).T @ torch.ones_like(whole)

    def rank() -> tuple[torch.Tensor, torch.Tensor]:
        comm = dgcl.build_comm_info(CASE.graph, "uniform", part=CASE.part(3))
        split, x = comm.split_graph(), comm.dispatch_features(whole.to(dtype)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            if verb == "parts":
                out = split.sum_owned(x) + split.sum_halo(dgcl.graph_allgather_async(x).wait())
            else:
                out = getattr(split, verb)(x)
        out.sum().backward()
        return comm.collect(out.detach(), None), comm.collect(x.grad, None)

    tolerance = (
        0 if verb != "mean" else 4 * torch.finfo(dtype).eps
    )  # divided, and its gradients summed, in 16 bits
    for found, grad in dgcl.launch(rank, 3):
        assert found.dtype == grad.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(grad.double(), expected_grad, rtol=tolerance, atol=4 * tolerance)


def test_means_of_16_bit_rows_are_right_where_sums_are_beyond_them() -> None:
    def run() -> torch.Tensor:
        edges = torch.stack([torch.arange(8).repeat(4), torch.arange(8).repeat_interleave(4)])
        comm = dgcl.build_comm_info(dgcl.graph.as_graph(edges, num_nodes=8), "uniform", part=np.arange(8) % 2)
        return comm.split_graph().mean(torch.full((comm.num_owned, 3), 60_000.0, dtype=torch.float16))

    for mean in dgcl.launch(run, 2):
        assert mean.tolist() == [[60_000.0] * 3] * 4
