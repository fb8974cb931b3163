"""What was counted: rows and bytes of a rank, by kind, as they move."""

from __future__ import annotations

from collections import Counter

__all__ = ["KINDS", "Account"]

#: Kinds of moves: the fields of :class:`~dgcl.offload.prediction.LayerRows`.
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
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, kind: str, rows: int, row_bytes: int) -> None:
        """Count rows that moved."""
        assert kind in KINDS
        self.rows[kind] += rows
        self.bytes[kind] += rows * row_bytes

    def __str__(self) -> str:
        return ", ".join(f"{kind.replace('_', ' ')} {self.rows[kind]}" for kind in KINDS if self.rows[kind])
