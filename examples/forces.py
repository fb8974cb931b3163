"""An energy and its forces, learned together: a loss of derivatives, through all exchanges twice.

    torchrun --nproc-per-node=4 examples/forces.py
    python examples/forces.py                          # on one rank, with the same losses

The energy is an MLP of pooled rows, which every rank has; its derivative by places is that of one device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

import dgcl


def cluster(num_atoms: int = 120, cutoff: float = 0.25) -> Data:
    """Atoms at random places, edges between near ones, and the energy and the forces of springs between them."""
    pos = torch.rand(
        num_atoms, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    near = torch.cdist(pos.detach(), pos.detach()) < cutoff
    edges = near.fill_diagonal_(False).nonzero().t()
    lengths = (pos[edges[0]] - pos[edges[1]]).norm(dim=1)
    energy = (lengths - 0.2).square().sum()
    (gradient,) = torch.autograd.grad(energy, pos)
    return Data(pos=pos.detach(), edge_index=edges, forces=-gradient, energy=energy.detach())


class Springs(MessagePassing):
    """Rows of atoms: what an MLP makes of the lengths of their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, pos: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, pos=pos)

    def message(self, pos_j: Tensor, pos_i: Tensor) -> Tensor:
        return self.mlp((pos_j - pos_i).norm(dim=1, keepdim=True))


def make_model() -> nn.ModuleDict:
    """A layer, and the MLP behind the readout."""
    readout = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return nn.ModuleDict({"springs": Springs(), "readout": readout}).double()


def train(data: Data | None, model: nn.ModuleDict, steps: int) -> list[float]:
    """Losses. ``data`` is needed on rank 0 only. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        pos = data.pos.requires_grad_()
        energy = model["readout"](model["springs"](pos, data.edge_index).mean(0, keepdim=True)).squeeze()
        (gradient,) = torch.autograd.grad(energy, pos, create_graph=True)
        loss = F.mse_loss(energy, data.energy) + F.mse_loss(-gradient, data.forces)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses = train(cluster(), make_model(), 50)
    if dgcl.current_communicator().rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
