"""How much work a search for a plan may do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How much work a search may do.

    Attributes:
        tolerance: relative distance from the bound to which fractional plans are solved and whole ones polished.
        enough: relative distance between plan and bound at which the search ends; None: `tolerance`.
        rounds, samples: of multiplicative weights, and answers kept of them.
        steps: largest number of linear programs for each number of stages.
        progress: share of the distance to the bound that a step must take off while a larger number of stages is
            still to be tried.
        usual_stages: numbers of stages tried as a matter of course; world_size - 1 only while the gap is
            above `fair`.
        fair: see `usual_stages`.
        thorough: whether to improve whole plans as long as that helps, and to round coarser solutions too (which of
            several solutions rounds best is chance).
    """

    tolerance: float
    enough: float | None = None
    rounds: int = 100
    samples: int = 16
    steps: int = 12
    progress: float = 0.1
    usual_stages: int = 4
    fair: float = 0.01
    thorough: bool = False

    @property
    def good(self) -> float:
        """Relative distance between plan and bound at which the search ends."""
        return self.tolerance if self.enough is None else self.enough

    @property
    def tolerances(self) -> tuple[float, ...]:
        """Relative distances from the bound at which solutions are rounded to whole plans, in turn."""
        return (
            (30.0 * self.tolerance, 10.0 * self.tolerance, self.tolerance)
            if self.thorough
            else (self.tolerance,)
        )
