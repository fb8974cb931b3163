"""A graph with several kinds of vertices and edges: one communicator for each kind of edges, all with the same parts.

    torchrun --nproc-per-node=4 examples/hetero.py
    python examples/hetero.py                          # on one rank, with the same losses

Vertices are numbered through, papers before authors, and divided once, by all edges; so each rank owns the same
vertices in every communicator, and each exchange brings the rows of one kind of edges alone. The model is a relational
GCN (Schlichtkrull et al., 2018): a matrix for each kind of edges.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl

EDGES = ("writes", "written by", "cited by")
NUM_FIELDS = 4


@dataclass
class Library:
    """Needed on rank 0 only."""

    num_nodes: int
    edges: dict[str, np.ndarray]  # (2, E) by kind: the second reads the first
    features: Tensor  # (N, 8)
    field: Tensor  # (N,) of papers, to be learned; -1 for authors


def library(papers: int = 600, authors: int = 300, seed: int = 0) -> Library:
    """Authors write, and papers cite, papers of their own field, mostly."""
    random = np.random.default_rng(seed)
    field = random.integers(0, NUM_FIELDS, papers + authors)
    writers = papers + np.repeat(np.arange(authors), 4)
    written = near(field[:papers], field[writers], random)
    citing = np.repeat(np.arange(papers), 5)
    edges = {
        "writes": np.stack([writers, written]),
        "written by": np.stack([written, writers]),
        "cited by": np.stack([citing, near(field[:papers], field[citing], random)]),
    }
    labels = torch.from_numpy(field)
    features = torch.randn(len(field), 8, generator=torch.Generator().manual_seed(seed))
    features[:, :NUM_FIELDS] += 0.7 * nn.functional.one_hot(labels, NUM_FIELDS)
    labels[papers:] = -1
    return Library(len(field), edges, features, labels)


def near(fields: np.ndarray, wanted: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """For each wanted field a vertex of it, four times out of five, else any."""
    found = random.integers(0, len(fields), len(wanted))
    for each in range(NUM_FIELDS):
        inside = (wanted == each) & (random.random(len(wanted)) < 0.8)
        found[inside] = random.choice(np.flatnonzero(fields == each), inside.sum())
    return found


def connect(data: Library | None) -> list[dgcl.Communicator]:
    """A communicator for each of EDGES, with the same parts. Collective."""
    every = data and np.concatenate([data.edges[kind] for kind in EDGES], 1)
    whole = dgcl.build_comm_info(None if data is None else dgcl.graph.as_graph(every, data.num_nodes))
    part = whole.collect(torch.full((whole.num_owned,), whole.rank))  # on rank 0: who owns each vertex
    graphs = [data and dgcl.graph.as_graph(data.edges[kind], data.num_nodes) for kind in EDGES]
    return [dgcl.build_comm_info(graph, part=part) for graph in graphs]


class RelationalGCN(nn.Module):
    """A layer: the mean over each kind of edges has a matrix of its own, and so has the vertex itself."""

    def __init__(self, comms: list[dgcl.Communicator], width_in: int, width_out: int) -> None:
        super().__init__()
        self.graphs = [(comm, comm.local_graph("csr")) for comm in comms]
        self.own = nn.Linear(width_in, width_out)
        self.read = nn.ModuleList(nn.Linear(width_in, width_out, bias=False) for _ in comms)

    def forward(self, x: Tensor) -> Tensor:
        """``(num_owned, width_in)`` to ``(num_owned, width_out)``."""
        means = [graph.mean(dgcl.graph_allgather(x, comm)) for comm, graph in self.graphs]
        return self.own(x) + sum(read(mean) for read, mean in zip(self.read, means, strict=True))


def train(data: Library | None, epochs: int) -> tuple[list[float], Tensor | None]:
    """Losses, and on rank 0 the field of each vertex, as predicted. ``data`` is needed on rank 0 only. Collective."""
    comms = connect(data)
    x, field = dgcl.dispatch_features(data and data.features), dgcl.dispatch_features(data and data.field)
    taught = (field >= 0) & (comms[0].owned_ids % 2 == 0)  # every other paper
    torch.manual_seed(0)
    model = nn.Sequential(RelationalGCN(comms, 8, 16), nn.ReLU(), RelationalGCN(comms, 16, NUM_FIELDS))
    dgcl.nn.broadcast_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = dgcl.nn.loss(F.cross_entropy)(model(x), field, taught)
        loss.backward()
        dgcl.nn.sync_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    with torch.inference_mode():
        return losses, dgcl.collect(model(x).argmax(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A relational GCN over three kinds of edges.")
    parser.add_argument("--epochs", type=int, default=50)
    epochs = parser.parse_args().epochs
    dgcl.init()
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    losses, found = train(data := library() if first else None, epochs)
    if data is not None:
        right = (found == data.field)[data.field >= 0][1::2].float()  # of papers that were not trained on
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; right: {right.mean():.0%} of {len(right)} papers")
