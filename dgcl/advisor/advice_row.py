"""Describes what is predicted for one strategy: epoch time, bytes of each rank, and why to take it or not.

A strategy that cannot be taken is a row, too, with ``refused`` and the reason in ``why``. It has no ``layers`` (seconds
of each layer) if the model or the machine rules it out, and has them if it only needs too much memory.
Called by `weighing`, which makes rows, and `advice`, which prints them. Free to change while a refused strategy is a
row with its reason, and equal questions give equal JSON (`tests/dgcl/advisor/test_choice.py`).
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from dgcl.advisor.epoch import Seconds, total
from dgcl.advisor.spelling import Description


@dataclass(eq=False)
class Row:
    """What is said of one strategy.

    Attributes:
        strategy: Its description.
        line: The code that asks for it.
        refused: Whether it cannot be taken.
        why: One reason to take it, or not to.
        state: "*" chosen, "=" as fast, else "".
        planner: "auto" or "direct".
        rows: Rows, or slices of them, that all ranks receive in an aggregation.
        slices: Of a row.
        owned, edges: Of each rank, rows that it computes and edges that it sums.
        layers: Seconds of each; empty where the strategy is not counted.
        bound_seconds: Of an epoch; no plan of its exchanges beats it.
        device_bytes: Of each rank, by name.
        host_bytes: Of all ranks.
    """

    strategy: Description
    line: str = ""
    refused: bool = False
    why: str = ""
    state: str = ""
    planner: str = "direct"
    rows: int = 0
    slices: int = 1
    owned: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    layers: list[Seconds] = field(default_factory=list)
    bound_seconds: float = 0.0
    device_bytes: dict[str, list[int]] = field(default_factory=dict)
    host_bytes: int = 0

    @property
    def seconds(self) -> Seconds:
        """Of an epoch."""
        return total(self.layers)

    @property
    def device(self) -> int:
        """Bytes of the fullest rank."""
        return max(map(sum, zip(*self.device_bytes.values(), strict=True)), default=0)

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        seconds = {"epoch": self.seconds.total, **asdict(self.seconds)}
        return {**asdict(self), "strategy": str(self.strategy), "seconds": seconds, "device": self.device}
