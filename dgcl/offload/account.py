"""Counts the rows and bytes that a rank moves, by kind: loaded, exchanged, stored, kept, gradients.

What each kind counts is said in ``Account``. Users read it as ``off.account``.
Called by `layer`, which counts, and `offload`. Free to change while rows and bytes of every kind are those that follow
from the sets of rows that chunks read (`tests/dgcl/offload/test_layer.py`).
"""

from collections import Counter


class Account:
    """Rows and bytes so far, by kind.

    Kinds are "loaded" from host memory and "exchanged" between ranks, both with "_again" in a backward that computes
    the layer again; "gradients_out" of inputs to host memory, "gradients_in" of results from it; "stored" results;
    "kept" aggregates, and "kept_again", back in.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, kind: str, rows: int, row_bytes: int) -> None:
        """Count rows that moved."""
        self.rows[kind] += rows
        self.bytes[kind] += rows * row_bytes

    def __str__(self) -> str:
        return ", ".join(f"{kind.replace('_', ' ')} {rows}" for kind, rows in self.rows.items() if rows)
