"""A layer of your own; it is compared with one device.

    python examples/custom_layer.py              # 4 ranks, as threads of this process
    python examples/custom_layer.py --forget     # without the exchange: the rows differ

The layer is an attention over neighbours. It needs two things of dgcl: this rank's edges, and the rows that they read.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import dgcl


class Attention(nn.Module):
    """Each vertex weighs its in-neighbours by scores of both ends, normalised over its in-edges."""

    def __init__(self, comm: dgcl.Communicator, width_in: int, width_out: int, exchange: bool = True) -> None:
        super().__init__()
        self.comm, self.graph, self.exchange = comm, comm.local_graph("csr"), exchange
        self.transform = nn.Linear(width_in, width_out)
        self.score_source, self.score_head = nn.Linear(width_out, 1), nn.Linear(width_out, 1)
        self.drop = dgcl.nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """``(num_owned, width_in)`` to ``(num_owned, width_out)``."""
        own = self.transform(x)  # before the exchange, so that the narrower rows travel
        if self.exchange:
            rows = dgcl.graph_allgather(own, self.comm)  # [owned | halo]
        else:
            rows = torch.cat([own, own.new_zeros(self.comm.num_halo, own.shape[1])])
        graph = self.graph
        scores = graph.at_sources(self.score_source(rows)) + graph.at_heads(self.score_head(own))
        shares = graph.softmax(nn.functional.leaky_relu(scores, 0.2))
        shares = self.drop(shares, ids=graph.edge_ids)  # the same edges for any number of ranks
        return graph.sum(rows, shares.squeeze(1))


def train(exchange: bool = True) -> tuple[list[float], Tensor]:
    """Three steps on a random graph; returns the losses and the rows of all vertices. Runs on each rank."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 200, (2, 2000), generator=generator)
    features = torch.randn(200, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (200,), generator=generator)

    comm = dgcl.build_comm_info(dgcl.graph.as_graph(edge_index, num_nodes=200))
    layers = Attention(comm, 16, 8, exchange), nn.Tanh(), Attention(comm, 8, 4, exchange)
    model = nn.Sequential(*layers).double()
    for parameter in model.parameters():  # the same on each rank
        nn.init.normal_(parameter, std=0.3, generator=generator)
    cross_entropy = dgcl.nn.loss(nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own, losses = comm.owned_ids, []
    for _ in range(3):
        optimizer.zero_grad()
        rows = model(features[own])
        loss = cross_entropy(rows, labels[own])
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(float(loss))
    return losses, comm.collect(rows.detach())


def main(num_ranks: int = 4, exchange: bool = True) -> None:
    """Compare one device with ``num_ranks`` ranks; raises AssertionError where they differ."""
    (losses, rows), (other_losses, other_rows) = (
        dgcl.launch(train, ranks, exchange)[0] for ranks in (1, num_ranks)
    )
    difference = float((rows - other_rows).abs().max())
    assert difference < 1e-9, f"rows differ by up to {difference:.2g}; losses: {losses} and {other_losses}"
    print(f"equal on 1 and {num_ranks} ranks: losses of 3 steps {losses}, and the rows of all vertices")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--forget", action="store_true", help="leave the exchange out")
    args = parser.parse_args()
    main(args.ranks, not args.forget)
