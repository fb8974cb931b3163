"""Normalisations of PyG over the rows of all ranks: forwards for modules that keep their parameters and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dgcl.distributed.classes import Distributed
from dgcl.nn.arguments import current
from dgcl.nn.graph_norm import GraphNorm
from dgcl.nn.reduce import mean_of_rows


def _mean(rows: Tensor, name: str) -> Tensor:
    """The mean of ``(num_owned, *F)`` over all vertices."""
    comm = current(None)
    if len(rows) != comm.num_owned:
        raise ValueError(f"x must hold the {comm.num_owned} owned rows of this rank (got {len(rows)})")
    return mean_of_rows(rows, comm, name)


def _pair_norm(norm: Any, x: Tensor) -> Tensor:
    x = x - _mean(x, "PairNorm")
    if norm.scale_individually:
        return norm.scale * x / (norm.eps + x.norm(2, -1, keepdim=True))
    return norm.scale * x / (norm.eps + _mean(x.square().sum(-1), "PairNorm")).sqrt()


def _layer_norm(norm: Any, x: Tensor) -> Tensor:
    x = x - _mean(x.mean(-1), "LayerNorm")
    x = x / (_mean(x.square().mean(-1), "LayerNorm").sqrt() + norm.eps)
    return x if norm.weight is None else x * norm.weight + norm.bias


#: By the name of a class of PyG what it computes of owned rows.
NORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "GraphNorm": GraphNorm.forward,
    "GraphSizeNorm": lambda norm, x: x * current(None).num_nodes ** -0.5,
    "LayerNorm": _layer_norm,
    "MeanSubtractionNorm": lambda norm, x: x - _mean(x, "MeanSubtractionNorm"),
    "PairNorm": _pair_norm,
}


def norm(base: type) -> type:
    """The subclass of such a norm."""
    over_ranks = next(NORMS[kind.__name__] for kind in base.__mro__ if kind.__name__ in NORMS)

    def forward(self: Any, x: Tensor, batch: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        if batch is not None:
            raise ValueError("batch must be None in a distributed model, whose rows are of one graph")
        return self.dgcl_home.run(over_ranks, False, self, x)

    return type(f"Distributed{base.__name__}", (Distributed, base), {"forward": forward, "_comm": None})
