"""A recurrent network over snapshots of a graph that changes: its gates aggregate, rows keep their state.

    torchrun --nproc-per-node=4 examples/snapshots.py
    python examples/snapshots.py                        # on one rank, with the same losses

A GRU whose two products are graph convolutions (as in Seo et al., 2018). Vertices stay where they are, and edges
change: `rewire` takes each snapshot's, and the backward goes through the exchanges of all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

import dgcl


def traffic(num_nodes: int = 200, times: int = 4) -> Data:
    """A road network, with other roads open at each time; ``y`` is what neighbours had one time earlier."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, num_nodes, (2, times, 5 * num_nodes), generator=draw)
    x = torch.randn(num_nodes, times, 3, generator=draw, dtype=torch.float64)
    y = torch.zeros(num_nodes, times, 1, dtype=torch.float64)
    for time in range(1, times):
        sources, heads = ends[:, time]
        y[:, time].index_add_(0, heads, x[sources, time - 1, :1])
    return Data(x=x, y=y, edge_index=ends[:, 0], roads=list(ends.unbind(1)))


class GraphGRU(nn.Module):
    """The state after each time, read out."""

    def __init__(self, width: int = 3, hidden: int = 16) -> None:
        super().__init__()
        self.gates = pyg.GraphConv(width + hidden, 2 * hidden, aggr="mean")
        self.candidate = pyg.GraphConv(width + hidden, hidden, aggr="mean")
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, state: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        update, reset = self.gates(torch.cat([x, state], 1), edge_index).sigmoid().chunk(2, 1)
        new = self.candidate(torch.cat([x, reset * state], 1), edge_index).tanh()
        state = update * state + (1 - update) * new
        return self.readout(state), state


def train(data: Data | None, model: nn.Module, steps: int) -> list[float]:
    """Losses. ``data`` is needed on rank 0 only. Collective."""
    data = dgcl.dispatch(data)
    dgcl.distribute(model)
    comm = dgcl.current_communicator()
    mine = [
        roads[:, comm.part[roads[1]] == comm.rank] for roads in data.roads
    ]  # edges that end at this rank's
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        state, outputs = data.x.new_zeros(data.num_nodes, 16), []
        for time, roads in enumerate(mine):
            comm = comm.rewire(tuple(roads))
            edge_index = dgcl.as_rows(comm.local_graph("pyg").edge_index, like=comm)
            out, state = model(data.x[:, time], state, edge_index)
            outputs.append(out)
        loss = F.mse_loss(torch.stack(outputs, 1), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    dgcl.init()
    losses = train(traffic(), GraphGRU().double(), 30)
    if dgcl.current_communicator().rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
