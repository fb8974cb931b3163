"""A layer of your own, and the proof that it gives the numbers of one device on any number of ranks.

    python examples/custom_layer.py              # 4 ranks, as threads of this process
    python examples/custom_layer.py --forget     # without the exchange: what differs is told

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
        self.drop = dgcl.nn.Dropout(0.2, edges=True)  # the same edges for any number of ranks

    def forward(self, x: Tensor) -> Tensor:
        """``(num_owned, width_in)`` to ``(num_owned, width_out)``."""
        own = self.transform(x)  # before the exchange, so that the narrower rows travel
        if self.exchange:
            rows = dgcl.graph_allgather(own, self.comm)  # [owned | halo]
        else:
            rows = torch.cat([own, own.new_zeros(self.comm.num_halo, own.shape[1])])
        graph = self.graph
        scores = graph.at_sources(self.score_source(rows)) + graph.at_heads(self.score_head(own))
        shares = self.drop(graph.softmax(nn.functional.leaky_relu(scores, 0.2)))
        return graph.sum(rows, shares.squeeze(1))


def main(num_ranks: int = 4, exchange: bool = True) -> None:
    """Compare one device with ``num_ranks`` ranks; raises AssertionError where they differ."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 200, (2, 2000), generator=generator)
    features = torch.randn(200, 16, generator=generator)

    def model_fn(comm: dgcl.Communicator) -> nn.Module:
        layers = Attention(comm, 16, 8, exchange), nn.Tanh(), Attention(comm, 8, 4, exchange)
        return nn.Sequential(*layers)

    graph = dgcl.graph.as_graph(edge_index, num_nodes=200)
    dgcl.testing.assert_equivalent(model_fn, graph, features, ranks=num_ranks)
    print(f"equal on 1 and {num_ranks} ranks: outputs, losses and gradients of 3 steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--forget", action="store_true", help="leave the exchange out")
    args = parser.parse_args()
    main(args.ranks, not args.forget)
