"""Personalised propagation over several hops, each with its own exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import Module

from dgcl.aggregation.aggregator import Aggregator
from dgcl.nn.arguments import current, require_integers, require_numbers
from dgcl.nn.convolutions import Normalised, Plain
from dgcl.ranks.tensors import require_tensors

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

__all__ = ["APPNP"]


class APPNP(Module):
    """Propagate predictions by personalised PageRank: PyG's ``APPNP`` (Gasteiger et al., 2019). No parameters.

    ``z = (1 - alpha) A z + alpha x``, K times from ``z = x``, where A is the matrix of :class:`GCNConv`. A forward
    makes K exchanges.

    Args:
        K: Hops.
        alpha: The share of ``x``.
        dropout: PyG drops edges with it in each hop; here it must be 0.
        add_self_loops: Every vertex has one self loop, in place of those that the graph has.
        normalize: Divide by the square roots of the in-degrees of both ends; False: a plain sum, no loops added.
    """

    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        *,
        add_self_loops: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        require_integers(K=K)
        require_numbers(alpha=alpha)
        if K < 0:
            raise ValueError(f"K must be at least 0 hops (got {K})")
        if dropout != 0:
            raise ValueError(
                f"dropout must be 0 (got {dropout}): the edges are those of all hops; drop rows before, with"
                " dgcl.nn.Dropout"
            )
        self.K, self.alpha = K, alpha
        self.add_self_loops, self.normalize = add_self_loops, normalize

    def forward(self, x: Tensor, comm: Communicator | None = None) -> Tensor:
        """``(num_owned, *F)`` to ``(num_owned, *F)``; collective. ``comm``: None for the current one."""
        comm = current(comm)
        require_tensors(x=x)
        aggregate = Normalised(comm, self.add_self_loops) if self.normalize else Plain(Aggregator(comm))
        out = x
        for _ in range(self.K):
            out = (1 - self.alpha) * aggregate(out) + self.alpha * x
        return out

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"K={self.K}, alpha={self.alpha}"
