"""The options of planning.

Called by `planner/methods/`, `dgcl/` and 10 more folders. Free to change while files, costs and proofs of
plans keep their meaning (`tests/planner/bounds/test_best.py` and
`tests/planner/column_generation/test_grouped.py`).
"""

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from dgcl.topology.checks import shown


@dataclass(frozen=True)
class PlanOptions:
    """Options of a planner, besides relation and topology.

    Attributes:
        row_bytes: bytes of one vertex row, >= 1. It matters for the choice of stages where connections have latency.
        seed: breaks ties where a planner draws; recorded in the plan.
        time_limit: seconds of this process's processor time after which the best plan so far is returned, so that other
            work on the machine costs no quality; None: until done. With a limit two calls may give different plans.
        gap: stop early once the plan is within this fraction of the proven bound.
    """

    row_bytes: int = 512
    seed: int = 0
    time_limit: float | None = None
    gap: float = 0.001

    def __post_init__(self) -> None:
        for name, low in (("row_bytes", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an integer (got {type(value).__name__})")
            if not low <= value < 1 << 53:
                raise ValueError(f"{name} must be >= {low} and < 2**53 (got {value})")
            object.__setattr__(self, name, int(value))
        limit, gap = self.time_limit, self.gap
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise _wrong(limit, f"time_limit must be positive seconds, or None (got {shown(limit)})")
        if not (_is_number(gap) and gap >= 0 and math.isfinite(gap)):
            raise _wrong(gap, f"gap must be a fraction >= 0 (got {shown(gap)})")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _wrong(value: object, message: str) -> Exception:
    """ValueError for a number out of range, TypeError for what is none."""
    return ValueError(message) if _is_number(value) else TypeError(message)
