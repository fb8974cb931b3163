"""A training job that enters a control group of its own, so that the operating system limits what it may take.

    python -m tests.dgcl.offload.limited MODE MODEL FEATURES.npy FOLDER PROCS

MODE is memory or offload; PROCS the file of the group that processes are entered in, or "none". The job enters when it
is set up: what it takes from then on counts, page cache included. Prints its losses, each as it comes.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn

CHUNKS = 16
STEPS = 2


def band(num_nodes: int) -> np.ndarray:
    """Every vertex reads the eight before it."""
    heads = np.repeat(np.arange(num_nodes), 8)
    return np.stack([(heads - np.tile(np.arange(1, 9), num_nodes)) % num_nodes, heads])


class Gcn(nn.Module):
    def __init__(self, width_in: int, width_out: int):
        super().__init__()
        self.product = nn.Linear(width_in, width_out)

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        return self.product(g.mean(src)).tanh()


class Gat(nn.Module):
    def __init__(self, width_in: int, width_out: int):
        super().__init__()
        self.product, self.attention = nn.Linear(width_in, width_out), nn.Linear(width_out, 2)

    def forward(self, g: Any, src: Tensor, dst: Tensor) -> Tensor:
        h = self.product(src)
        read, write = self.attention(h).unbind(1)
        scores = torch.nn.functional.leaky_relu(g.at_sources(read) + g.at_heads(write[: len(dst)]))
        return g.sum(h, g.softmax(scores)).tanh()


class Wide(nn.Module):
    """Its aggregate is made once and kept, in a file."""

    def __init__(self, width_in: int, width_out: int):
        super().__init__()
        self.product = nn.Linear(width_in, width_out)

    def forward(self, aggregate: Tensor) -> Tensor:
        return self.product(aggregate).tanh()


def losses(mode: str, model: str, features: str, folder: str, procs: str = "none") -> Iterator[float]:
    """Of each step."""
    torch.manual_seed(0)
    rows = np.load(features, mmap_mode="r")
    num_nodes, width = rows.shape
    comm = dgcl.build_comm_info(dgcl.graph.as_graph(band(num_nodes)))
    kind = {"gcn": Gcn, "gat": Gat, "wide": Wide}[model]
    layers = nn.ModuleList([kind(width, 64)] if model == "wide" else [kind(width, width) for _ in range(3)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    labels = torch.arange(num_nodes) % 16
    off, g = None, comm.local_graph("csr")
    if mode == "offload":
        rows_in = {"store": folder, "store_cached": False, "keep_graphs": False}
        off = dgcl.Offload(comm, chunks=CHUNKS, chunk_by="range", **rows_in)
    if procs != "none":
        Path(procs).write_text("0")
    x = torch.from_numpy(np.array(rows)) if off is None else off.dispatch_features(rows)
    labels = labels if off is None else off.dispatch_features(labels)
    for _ in range(STEPS):
        optimizer.zero_grad()
        h = x
        for number, layer in enumerate(layers):
            if off is None:
                h = layer(g, h, h)
            elif model == "wide":
                h = off.layer(layer, h, aggregate="mean", constant=number == 0, keep=True)
            else:
                h = off.layer(layer, h)
        loss = dgcl.nn.loss(F.cross_entropy)(h, labels) if off is None else off.cross_entropy(h, labels)
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def main(*arguments: str):
    torch.set_num_threads(1)
    dgcl.init()
    for loss in losses(*arguments):
        print(loss, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
