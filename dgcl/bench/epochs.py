"""Epochs with several strategies, in turns, on ranks of this host that are threads."""

from functools import partial
from typing import Any

import torch
from torch.nn import Linear, ReLU, Sequential

import dgcl.nn
from dgcl.advisor.advice import Advice
from dgcl.bench.turns import in_turns

#: The layer of a kind, from its widths.
LAYERS: dict[str, Any] = {
    "gcn": dgcl.nn.GCNConv,
    "sage": dgcl.nn.SAGEConv,
    "gin": lambda width, out: dgcl.nn.GINConv(Sequential(Linear(width, out), ReLU(), Linear(out, out))),
}


def measure_epochs(advice: Advice, rounds: int = 5, most: int = 3) -> None:
    """Note the median seconds of a training epoch in as many rows: the best that fit, and run layer by layer.

    Raises:
        ValueError: It is of another machine or model, or of sizes alone.
    """
    of = advice.candidates
    if of.topology.name[:4] != "host" or of.part is None or of.model.kinds - {*LAYERS}:
        raise ValueError(
            f"--measure trains gcn, sage or gin on a graph, with topology host:P (got {of.model.text} on"
            f" {of.topology.name})"
        )
    rows = [
        row for row in advice.rows if row.strategy.name not in ("in-place", "offload") and not row.refused
    ]

    def on_rank() -> None:
        calls: dict[Any, Any] = {}
        for row in rows[:most]:
            comm = dgcl.build_comm_info(of.graph, of.topology, part=of.part, strategy=row.strategy)
            layers = [LAYERS[each.kind](each.width, each.out) for each in of.model.layers]
            calls[row] = partial(epoch, comm, layers, torch.rand(comm.num_owned, of.model.widths[0]))
        times: Any = in_turns(calls, rounds, enough=0.2, control=comm.control)
        for row in times:  # the same on every rank
            row.measured = times[row].median

    dgcl.launch(on_rank, of.topology.num_devices)


def epoch(comm: dgcl.Communicator, layers: Any, x: Any) -> None:
    """Train once, without an optimiser."""
    for number, layer in enumerate(layers):
        x = layer(x.relu() if number else x, comm)
    torch.nn.functional.cross_entropy(x, comm.owned_ids % x.shape[1]).backward()
