"""The cost of a layer on a rank besides communication: replicas are computed, not sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgcl.replication.counts import Holdings


@dataclass(frozen=True)
class Work:
    """Seconds of computation in the forward pass of a layer.

    Measured by :mod:`dgcl.frameworks.layer_work`.

    Attributes:
        edge: For each edge that is summed over.
        row: For each row that is multiplied with a square matrix.
    """

    edge: float
    row: float

    def seconds(self, held: Holdings) -> NDArray[np.float64]:
        """(P,) seconds of each rank in a layer, forward and backward.

        A sum's backward is another sum; a product's, two more products.
        """
        return 2 * self.edge * held.edges + 3 * self.row * held.owned

    def __str__(self) -> str:
        return f"{self.edge * 1e9:.3g} ns an edge, {self.row * 1e9:.3g} ns a row"
