"""How long a calibration measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: For one round of one exchange, about.
        least, most: Calls in a round.
        rounds: How often all exchanges are measured.
    """

    seconds: float = 0.2
    least: int = 10
    most: int = 100
    rounds: int = 4
