"""What examples/train.py prints: the graph, its parts, the plan, and a row for each epoch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from graphs import Data
from torch import Tensor

import dgcl


@dataclass
class Result:
    """The loss of each epoch, and on rank 0 the logits of all vertices."""

    losses: list[float]
    logits: Tensor | None


def describe(
    comm: dgcl.Communicator, data: Data | None, args: argparse.Namespace, set_up_seconds: float, show: bool
) -> None:
    """Print the graph, its parts and the plan."""
    parts = comm.control.exchange((comm.num_owned, comm.num_halo))
    if not show or data is None:
        return
    owned, halo = zip(*parts, strict=True)
    sizes = f"{min(owned):,} to {max(owned):,}"
    plan = comm.plan
    seconds = f"predicted {plan.predicted_seconds * 1e6:.1f} us per exchange of {plan.row_bytes}-byte rows"
    print(f"graph   {data.name}: {comm.num_nodes:,} vertices, {comm.num_edges:,} edges")
    print(f"parts   {comm.world_size} ranks of {sizes} vertices; {sum(halo):,} halo rows")
    print(
        f"plan    {plan.method}: {plan.num_stages} stage(s), {plan.relation.num_classes} classes; {seconds},"
    )
    print(f"        at most {plan.gap:.1%} above what any plan could reach")
    if comm.choice:
        print(f"choice  {comm.choice}")
    baseline = dgcl.bench.BASELINES.get(args.method)
    if baseline is not None:
        print(f"method  {args.method}: {baseline}; the plan numbers the rows")
    print(f"set-up  {set_up_seconds:.1f} s to partition, plan, prove and connect\n", flush=True)


def print_row(show: bool, epoch: object, *values: object) -> None:
    """A row of the table."""
    if show:
        cells = [f"{value:10.4f}" if isinstance(value, float) else f"{value:>10}" for value in values]
        print(f"{epoch:>5}", *cells, flush=True)


def print_difference(found: Result, alone: Result) -> bool:
    """Print whether two runs gave the same numbers, up to rounding; and say so."""
    assert found.logits is not None
    assert alone.logits is not None
    difference = max(
        (found.logits - alone.logits).abs().max().item(),
        max(abs(one - other) for one, other in zip(found.losses, alone.losses, strict=True)),
    )
    scale = max(1.0, alone.logits.abs().max().item())
    equal = difference <= (1e-9 if alone.logits.dtype == torch.float64 else 1e-3) * scale
    print(f"\nequal to 1 rank: {'yes' if equal else 'NO'} (largest difference {difference:.1e})", flush=True)
    return equal
