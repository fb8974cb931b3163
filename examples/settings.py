"""The options of examples/train.py, and the communicator that they ask for."""

from __future__ import annotations

import argparse

import torch

import dgcl

MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "commnet": "CommNet", "gat": "GAT"}


def parse_arguments(about: str | None) -> argparse.Namespace:
    """The command line; ``about`` is what its help begins with."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=plain)
    parser.add_argument("--graph", help="npz, edge list or Matrix Market file (default: a synthetic graph)")
    parser.add_argument("--model", choices=MODELS, default="gcn")
    parser.add_argument("--layers-from", choices=["dgl", "torch"], default="torch", help="whose layers")
    parser.add_argument(
        "--strategy", default="halo", help="what ranks exchange: cover, tail, .. (default: halo rows)"
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
    args.dtype = torch.float64 if args.float64 or args.check else torch.float32
    return args


def build(graph: object, args: argparse.Namespace) -> dgcl.Communicator:
    """The communicator: a planner's, or one whose rows a baseline moves."""
    return dgcl.bench.build_comm_info(
        graph,
        args.topology,
        method=args.method,
        strategy=args.strategy,
        plan=dgcl.PlanOptions(seed=args.seed),
        cache=args.cache,
    )
