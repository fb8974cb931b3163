"""Train a graph neural network on the whole graph, over any number of ranks.

    torchrun --nproc-per-node=4 examples/train.py                       # GCN on a synthetic graph
    torchrun --nproc-per-node=4 examples/train.py --check               # ... and compare with one rank
    torchrun --nproc-per-node=4 examples/train.py --graph cora.npz --model gat --layers-from dgl
    torchrun --nproc-per-node=4 examples/train.py --method gloo --check # rows moved by something else
    python examples/train.py                                            # one rank, no torchrun

Beside this file are the layers (layers_dgl.py, layers_torch.py), data (graphs.py), options (settings.py)
and what is printed (show.py). What is special about several ranks is in `train`, and marked.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from graphs import Data, from_file, planted_communities, with_self_loops
from settings import MODELS, build, parse_arguments
from show import Result, describe, print_difference, print_row
from torch import Tensor, nn

import dgcl
import dgcl.nn


class Model(nn.Module):
    """Layers with ReLU and dropout between them. A layer exchanges rows once and returns this rank's rows."""

    def __init__(self, layer: type[nn.Module], widths: list[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(*pair) for pair in pairwise(widths))
        self.dropout = dgcl.nn.Dropout(dropout)  # drops the same elements for any number of ranks

    def forward(self, graph: object, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(torch.relu(layer(graph, x)))
        return self.layers[-1](graph, x)


def train(data: Data | None, args: argparse.Namespace, show: bool) -> Result:
    """Train on the ranks that there are. ``data`` is needed on rank 0 only."""
    # Several ranks: partition the graph, plan the exchange, and hand out the rows of the vertices.
    begin = time.perf_counter()
    comm = build(data and data.graph, args)
    set_up_seconds = time.perf_counter() - begin
    x = dgcl.dispatch_features(data and data.features.to(args.dtype))
    labels = dgcl.dispatch_features(data and data.labels)
    masks = dgcl.dispatch_features(data and data.masks).unbind(1)
    num_classes = comm.control.broadcast(data and data.num_classes)
    describe(comm, data, args, set_up_seconds, show)

    layers = importlib.import_module(f"layers_{args.layers_from}")
    graph = layers.prepare(comm, args.dtype)
    widths = [x.shape[1], *[args.hidden] * (args.layers - 1), num_classes]
    torch.manual_seed(args.seed)
    model = Model(getattr(layers, MODELS[args.model]), widths, args.dropout).to(args.dtype)
    dgcl.nn.broadcast_parameters(model, inexact="ignore")  # several ranks: all begin with the model of rank 0
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    print_row(show, "epoch", "loss", "train", "val", "test", "seconds")
    losses: list[float] = []
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        logits = model(graph, x)
        loss = dgcl.nn.loss(F.cross_entropy)(
            logits, labels, masks[0]
        )  # several ranks: the loss of all vertices
        loss.backward()
        dgcl.nn.sync_gradients(model)  # several ranks: the gradient of all vertices
        optimizer.step()
        seconds = time.perf_counter() - begin

        losses.append(loss.item())
        if epoch % args.every == 0 or epoch in (1, args.epochs):
            with torch.no_grad():
                logits = model.eval()(graph, x)
            scores = [dgcl.nn.accuracy(logits, labels, mask).item() for mask in masks]
            print_row(show, epoch, losses[-1], *scores, seconds)

    with torch.no_grad():
        result = Result(losses, dgcl.collect(model.eval()(graph, x)))
    comm.close()
    return result


def check(data: Data | None, args: argparse.Namespace, found: Result) -> bool:
    """Train once more on a single rank, inside rank 0, and compare every loss and every logit."""
    if data is None or found.logits is None:
        return True
    alone = argparse.Namespace(**{**vars(args), "method": "auto", "topology": "auto"})
    (expected,) = dgcl.launch(train, 1, data, alone, False)
    return print_difference(found, expected)


def main() -> int:
    """Train, and check if asked to."""
    args = parse_arguments(__doc__)
    dgcl.init()  # joins the ranks that torchrun started; without it this is the only rank
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    data = None
    if first:
        print(f"reading {args.graph}" if args.graph else "making a synthetic graph", flush=True)
        data = from_file(args.graph, args.seed) if args.graph else planted_communities(seed=args.seed)
        if args.model in ("gcn", "gat"):
            data.graph = with_self_loops(data.graph)
    result = train(data, args, show=first)
    return 0 if not args.check or check(data, args, result) else 1


if __name__ == "__main__":
    sys.exit(main())
