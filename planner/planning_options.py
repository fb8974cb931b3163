"""The options of a planning method: row width, seed, time limit, and the gap at which it may stop.

They are checked when made. Cached plans have all of them in their key, by name: a new option makes other keys.
Called by users, `planner/methods/registry`, `dgcl/options`, `dgcl/build`, `dgcl/prepare/cache` and others. Free to
change while bad values are refused by name (`tests/planner/methods/test_make_plan.py`), and every option is in the key
(`tests/dgcl/prepare/test_cache.py`).
"""

from dataclasses import dataclass

from dgcl.topology.checks import check_index, check_number


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
            whole = check_index(getattr(self, name), name, low, (1 << 53) - 1)
            object.__setattr__(self, name, whole)
        is_infinite = isinstance(self.time_limit, float) and self.time_limit == float("inf")
        if self.time_limit is not None and not is_infinite:
            check_number(self.time_limit, "time_limit (seconds, or None)", positive=True)
        check_number(self.gap, "gap", positive=False)
