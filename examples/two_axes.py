"""One graph over some ranks, the same model on other samples over the others: a mesh of 2 x 2.

    torchrun --nproc-per-node=4 examples/two_axes.py

Each row of ranks holds the whole graph and one of the samples; gradients are summed along "graph" and averaged along
"data", so every rank steps alike, as one device would on both samples.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import dgcl

NUM_NODES, STEPS = 60, 4


def samples(num_samples: int) -> tuple[Tensor, Tensor]:
    """Edges (2, E), and features (num_samples, N, 5) whose last column is to be learned from the others."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NUM_NODES, (2, 400), generator=generator)
    return edges, torch.randn(num_samples, NUM_NODES, 5, generator=generator, dtype=torch.float64)


def train(data_parallel: bool = True, num_data: int = 2) -> tuple[list[float], list[Tensor]]:
    """Losses of this rank's sample, and the final parameters. Collective."""
    mesh = init_device_mesh(
        "cpu", (num_data, dist.get_world_size() // num_data), mesh_dim_names=("data", "graph")
    )
    along = mesh["data"] if data_parallel else None
    dgcl.init(mesh["graph"])
    edges, features = samples(num_data)
    comm = dgcl.build_comm_info(dgcl.graph.as_graph(edges, num_nodes=NUM_NODES))
    graph = comm.local_graph("csr")
    sample = comm.dispatch_features(features[mesh.get_local_rank("data")])
    x, target = sample[:, :4].contiguous(), sample[:, 4:]
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    dgcl.nn.broadcast_parameters(model, data_parallel=along)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = dgcl.nn.loss(F.mse_loss, comm=comm)(graph.mean(comm.expand(model(x))), target)
        loss.backward()
        dgcl.nn.sync_gradients(model, comm=comm, data_parallel=along)
        optimizer.step()
        losses.append(loss.item())
    comm.close()
    return losses, [parameter.detach() for parameter in model.parameters()]


if __name__ == "__main__":
    dgcl.init()
    print(f"rank {dist.get_rank()}: losses {[round(loss, 4) for loss in train()[0]]}")
