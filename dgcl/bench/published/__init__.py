"""CAGNET's algorithms as published (Tripathy, Yelick and Buluc, SC'20), to compare with; no model should use them.

They receive more than grids do (:mod:`dgcl.grid`), and are kept because people want to see the two side by side: in
words, in time and in what they train, which is the same.

- :mod:`~dgcl.bench.published.split`: 2D and 3D. Activations stay split by columns; tiles of the adjacency and blocks
  of activations are broadcast in each aggregation, and each dense product gathers whole rows;
- :mod:`~dgcl.bench.published.softmax`: log-softmax and cross entropy of such activations, by 3 numbers for each row;
- :mod:`~dgcl.bench.published.replicated`: 1.5D. Each block of whole rows is on several ranks, which add up what each
  of them summed;
- :mod:`~dgcl.bench.published.exchanges`: what they exchange, as relations of the same planner, proof and transport.

What differs from the paper: graphs may be directed, numbers of ranks need not be square, blocks may differ in size, a
mean of a loss is that of all vertices, indices travel as integers, and gradients of parameters are summed by
:func:`dgcl.nn.sync_gradients`.
"""

from dgcl.bench.published.replicated import ReplicatedRows
from dgcl.bench.published.split import SplitRows

__all__ = ["ReplicatedRows", "SplitRows"]
