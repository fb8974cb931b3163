"""Links predicted from fresh negative samples in each step: rows of any vertices, fetched from their owners.

    torchrun --nproc-per-node=4 examples/link_prediction.py
    python examples/link_prediction.py                          # on one rank, with the same losses

All ranks draw the same pairs, by the number of the step; who owns the vertices that a pair joins does not matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

import dgcl


def ring_of_friends(num_nodes: int = 300) -> Data:
    """Vertices on a ring know others near them; the links to be predicted are in ``edge_label_index``."""
    draw = torch.Generator().manual_seed(0)
    sources = torch.arange(num_nodes).repeat(6)
    heads = (sources + torch.randint(1, 9, sources.shape, generator=draw)) % num_nodes
    links = torch.stack([sources, heads])
    known, asked = links[:, ::2], links[:, 1::2]
    angle = torch.arange(num_nodes) * (2 * torch.pi / num_nodes)
    x = torch.stack([(k * angle).sin() for k in range(1, 5)] + [(k * angle).cos() for k in range(1, 5)], 1)
    return Data(x=x.double(), edge_index=torch.cat([known, known.flip(0)], 1), edge_label_index=asked)


def make_model() -> nn.Module:
    """PyG's, two hops."""
    return pyg.GraphSAGE(8, 32, num_layers=2, out_channels=16).double()


def pairs_of_step(step: int, links: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """(2, k) pairs, the links and as many others, and (k,) whether each is a link; the same on every rank."""
    draw = torch.Generator().manual_seed(step)
    others = torch.randint(0, num_nodes, links.shape, generator=draw)
    return torch.cat([links, others], 1), torch.arange(2 * links.shape[1]).lt(links.shape[1]).double()


def train(data: Data | None, model: nn.Module, steps: int) -> list[float]:
    """Losses. ``data`` is needed on rank 0 only. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        pairs, is_link = pairs_of_step(step, data.edge_label_index, data.num_nodes)
        h = model(data.x, data.edge_index)
        loss = F.binary_cross_entropy_with_logits((h[pairs[0]] * h[pairs[1]]).sum(1), is_link)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses = train(ring_of_friends(), make_model(), 50)
    if dgcl.current_communicator().rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
