"""What a layer costs a rank besides communication, measured: replicas are computed, not sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from dgcl.replication.counts import Holdings

_ROWS = 1 << 14
_DEGREE = 16
_WIDEST = 1024  # elements; wider rows are taken to cost in proportion (dense work: to the square)
_ROUNDS = 3


@dataclass(frozen=True)
class Work:
    """Seconds of computation in the forward pass of a layer.

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


def measure_work(row_bytes: int, device: torch.device | str = "cpu") -> Work:
    """Time a layer of float32 rows of about ``row_bytes`` on ``device``: a tenth of a second on a CPU.

    The fastest of three rounds, by this rank alone: ranks that share a memory bus or cores with others are
    slower.
    """
    import torch

    from dgcl.frameworks.csr_ops import build_adjacency, weighted_sum

    place = torch.device(device)
    elements = max(row_bytes // 4, 1)
    width = min(elements, _WIDEST)
    num_rows = max(256, min(_ROWS, (1 << 20) // width))
    random = torch.Generator().manual_seed(0)
    sources = torch.randint(0, num_rows, (num_rows * _DEGREE,), dtype=torch.int32, generator=random)
    indptr = torch.arange(0, num_rows * _DEGREE + 1, _DEGREE, dtype=torch.int32)
    edges = build_adjacency(indptr, sources, num_rows).to(place)
    x, weight = torch.ones(num_rows, width, device=place), torch.ones(width, width, device=place)

    def best(call: Callable[[], object]) -> float:
        times = []
        for _ in range(_ROUNDS + 1):  # the first warms up
            begin = time.perf_counter()
            call()
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            times.append(time.perf_counter() - begin)
        return min(times[1:])

    with torch.no_grad():
        summing = best(lambda: weighted_sum(x, None, edges))
        multiplying = best(lambda: x @ weight)
    scale = elements / width
    return Work(summing / len(sources) * scale, multiplying / num_rows * scale**2)
