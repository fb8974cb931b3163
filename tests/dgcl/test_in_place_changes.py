"""Results of exchanges and aggregations may be changed in place, as of any function of torch; judged without that.

Large results are in memory of ours, and rows of bfloat16 have no type of NumPy's: tensors over such memory must not be
views to autograd.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import dgcl

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NUM_NODES = 6000  # times 16 columns: more than the 128 KiB from which on results have memory of their own

Verb = Callable[[Tensor], Tensor]


def verbs() -> dict[str, Verb]:
    edges = np.random.default_rng(0).integers(0, NUM_NODES, (2, 4 * NUM_NODES))
    graph = dgcl.graph.as_graph(edges, num_nodes=NUM_NODES)
    cover = dgcl.build_comm_info(graph, "uniform", part=np.arange(NUM_NODES) % 2, strategy="cover")
    comm = dgcl.build_comm_info(graph, "uniform", part=np.arange(NUM_NODES) % 2)
    learned = torch.ones(comm.local.num_edges, requires_grad=True)
    return {
        "graph_allgather": dgcl.graph_allgather,
        "halo rows": lambda x: dgcl.graph_allgather_async(x).wait(),
        "fold": lambda x: comm.fold(comm.expand(x)),
        "sum": comm.aggregator("sum"),
        "mean": cover.aggregator("mean"),
        "max": comm.aggregator("max"),
        "windows": comm.aggregator("sum", windows=3),
        "learned weights": lambda x: comm.aggregator("sum", edge_weight=learned.to(x.dtype))(x),
    }


def problems(dtype: torch.dtype) -> list[str]:
    """What is wrong, verb by verb; in two calls each, of which the second takes what the first has prepared."""
    found = []
    for name, verb in verbs().items():
        for call in (1, 2):
            x = torch.randn(NUM_NODES // 2, 16, generator=torch.Generator().manual_seed(call)).to(dtype)
            apart, in_place = (x.clone().requires_grad_() for _ in range(2))
            verb(apart).relu().float().sum().backward()
            try:
                verb(in_place).relu_().float().sum().backward()
            except RuntimeError as error:
                found.append(f"{name}, call {call}: {error}")
            else:
                assert apart.grad is not None
                if in_place.grad is None or not torch.equal(apart.grad, in_place.grad):
                    found.append(f"{name}, call {call}: another gradient")
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_may_be_changed_in_place(dtype: torch.dtype):
    for found in dgcl.launch(problems, 2, dtype):
        assert not found, "\n".join(found)
