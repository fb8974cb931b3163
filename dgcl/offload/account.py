"""Counters of the rows and bytes that a rank moves, by kind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dgcl.offload.allocations import Allocations

if TYPE_CHECKING:
    import torch

    from dgcl.offload.offload_prediction import DeviceBytes


#: Kinds of moves: from host memory, and again in a backward that computes the layer again; between ranks, likewise;
#: gradients of inputs to host memory, and of results from it; results to it; aggregates to it, and back in.
KINDS = (
    "loaded",
    "loaded_again",
    "exchanged",
    "exchanged_again",
    "gradients_out",
    "gradients_in",
    "stored",
    "kept",
    "kept_again",
)


class Account:
    """Rows and bytes so far, by kind.

    Attributes:
        rows, bytes: By kind, one of :data:`KINDS`.
        allocations: Counts all that layers take, where widths are known.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.allocations: Allocations | None = None

    def hold(self, limit: int | None, predicted: DeviceBytes, device: torch.device) -> None:
        """Count all that layers take, up to what a limit leaves beside what is not counted."""
        not_counted = predicted.arrivals + predicted.edges + predicted.small
        self.allocations = Allocations(None if limit is None else limit - not_counted, device)

    def add(self, kind: str, rows: int, row_bytes: int) -> None:
        """Count rows that moved."""
        assert kind in KINDS
        self.rows[kind] += rows
        self.bytes[kind] += rows * row_bytes

    def __str__(self) -> str:
        return ", ".join(f"{kind.replace('_', ' ')} {self.rows[kind]}" for kind in KINDS if self.rows[kind])
