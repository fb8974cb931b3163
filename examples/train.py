"""Train a graph neural network on the whole graph, over any number of ranks.

    torchrun --nproc-per-node=4 examples/train.py                       # GCN on a synthetic graph
    torchrun --nproc-per-node=4 examples/train.py --check               # ... and compare with one rank
    torchrun --nproc-per-node=4 examples/train.py --graph cora.npz --model gat --layers-from pyg
    torchrun --nproc-per-node=4 examples/train.py --method gloo --check # rows moved by something else
    python examples/train.py                                            # one rank, no torchrun

The layers are in layers_dgl.py, layers_pyg.py and layers_torch.py beside this file, and data in graphs.py; what is
special about several ranks is in `train`, and marked.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from graphs import Data, from_file, planted_communities, with_self_loops
from torch import Tensor, nn

import dgcl
import dgcl.nn

MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "commnet": "CommNet", "gat": "GAT"}


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


@dataclass
class Result:
    """The loss of each epoch, and on rank 0 the logits of all vertices."""

    losses: list[float]
    logits: Tensor | None


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
    dgcl.nn.broadcast_parameters(model)  # several ranks: all begin with the model of rank 0
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    print_row(show, "epoch", "loss", "train", "val", "test", "seconds")
    losses: list[float] = []
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        logits = model(graph, x)
        loss = dgcl.nn.cross_entropy(logits, labels, masks[0])  # several ranks: the loss of all vertices
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


def build(graph: object, args: argparse.Namespace) -> dgcl.Communicator:
    """The communicator: a planner's, or one whose rows a baseline moves."""
    # Replicas must last for all exchanges; PyG's GCN has one more than layers, for the degrees in its weights.
    exchanges = args.layers + (args.layers_from == "pyg" and args.model == "gcn")
    options = {"topology": args.topology, "method": args.method, "seed": args.seed}
    if args.method in dgcl.bench.BASELINES:
        return dgcl.bench.build_comm_info(graph, layers=exchanges, **options)
    replicas = dgcl.ReplicaOptions(hops=exchanges)
    return dgcl.build_comm_info(graph, replicas=replicas, cache=args.cache, **options)


def describe(
    comm: dgcl.Communicator, data: Data | None, args: argparse.Namespace, set_up_seconds: float, show: bool
) -> None:
    """Print the graph, its parts and the plan."""
    parts = comm.control.exchange((comm.num_core, comm.num_halo, comm.local.num_replicas))
    if not show or data is None:
        return
    core, halo, replicas = zip(*parts, strict=True)
    sizes = f"{min(core):,} to {max(core):,}"
    copies = f", {sum(replicas):,} replicas" if any(replicas) else ""
    plan = comm.plan
    seconds = f"predicted {plan.predicted_seconds * 1e6:.1f} us per exchange of {plan.row_bytes}-byte rows"
    print(f"graph   {data.name}: {comm.num_nodes:,} vertices, {comm.num_edges:,} edges")
    print(f"parts   {comm.world_size} ranks of {sizes} vertices; {sum(halo):,} halo rows{copies}")
    print(
        f"plan    {plan.method}: {plan.num_stages} stage(s), {plan.relation.num_classes} classes; {seconds},"
    )
    of_copies = " of these copies" if any(replicas) else ""
    print(f"        at most {plan.gap:.1%} above what any plan{of_copies} could reach")
    if comm.choice:
        print(f"choice  {comm.choice}")
    baseline = dgcl.bench.BASELINES.get(args.method)
    if baseline is not None:
        print(f"method  {args.method}: {baseline.summary}; the plan numbers the rows")
    print(f"set-up  {set_up_seconds:.1f} s to partition, plan, prove and connect\n", flush=True)


def print_row(show: bool, epoch: object, *values: object) -> None:
    """A row of the table."""
    if show:
        cells = [f"{value:10.4f}" if isinstance(value, float) else f"{value:>10}" for value in values]
        print(f"{epoch:>5}", *cells, flush=True)


def check(data: Data | None, args: argparse.Namespace, found: Result) -> bool:
    """Train once more on a single rank, inside rank 0, and compare every loss and every logit."""
    if data is None or found.logits is None:
        return True
    alone = argparse.Namespace(**{**vars(args), "method": "auto", "topology": "auto"})
    (expected,) = dgcl.launch(train, 1, data, alone, False)
    difference = max(
        (found.logits - expected.logits).abs().max().item(),
        max(abs(one - other) for one, other in zip(found.losses, expected.losses, strict=True)),
    )
    scale = max(1.0, expected.logits.abs().max().item())
    equal = difference <= (1e-9 if args.dtype == torch.float64 else 1e-3) * scale
    print(f"\nequal to 1 rank: {'yes' if equal else 'NO'} (largest difference {difference:.1e})", flush=True)
    return equal


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--graph", help="npz, edge list or Matrix Market file (default: a synthetic graph)")
    parser.add_argument("--model", choices=MODELS, default="gcn")
    parser.add_argument(
        "--layers-from", choices=["dgl", "pyg", "torch"], default="torch", help="whose layers"
    )
    parser.add_argument("--method", choices=dgcl.bench.METHODS, default="auto", help="what moves the rows")
    parser.add_argument("--topology", default="auto", help="a preset or a JSON file (default: found out)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=int, default=1, help="epochs between rows of the table")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", metavar="FOLDER", help="keep partition and plan there for the next run")
    parser.add_argument("--float64", action="store_true", help="compute in float64 (default with --check)")
    parser.add_argument(
        "--check", action="store_true", help="compare with one rank; exit with 1 if not equal"
    )
    args = parser.parse_args()
    if args.cache is not None and args.method in dgcl.bench.BASELINES:
        parser.error(f"--cache goes with plans: nothing of --method {args.method} is kept")
    args.dtype = torch.float64 if args.float64 or args.check else torch.float32
    return args


def main() -> int:
    """Train, and check if asked to."""
    args = parse_arguments()
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
