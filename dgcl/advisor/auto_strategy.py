"""Implements ``strategy="auto"``: predicts every strategy for a model, and arranges the exchange of the best one.

Speeds of devices are presets by the topology's devices; nothing is timed. "windows", "in-place" and "offload" exchange
the same rows as "halo": :mod:`dgcl.build` sets the windows afterwards, and for the other two the reason that is given
(``Arrangement.why``) names the call that users must make.
Called by `dgcl/build` and `dgcl/options`. Free to change while the communicator does what ``dgcl.advise`` advises
within the memory limit, windows included, on every rank (`tests/dgcl/advisor/test_choice.py`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dgcl.advisor.counts import Candidates
from dgcl.advisor.device_rates import preset_rates
from dgcl.advisor.model_costs import Model
from dgcl.advisor.spelling import Description
from dgcl.advisor.weighing import weigh
from dgcl.planner.reading.render import seconds
from dgcl.program.strategy import Arrangement, Problem

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class Advised:
    """Takes what :func:`~dgcl.advisor.choice.advise` says; a :class:`~dgcl.program.strategy.Strategy`.

    Attributes:
        model: What is trained.
        memory_limit: Bytes of a rank's device; None: no bound.
        chosen: What was taken, where it was arranged.
    """

    model: Model
    memory_limit: int | None = None
    chosen: list[Description] = field(default_factory=list, compare=False)

    def first_plan(self) -> Mapping[str, Any]:
        """What the plan depends on that is asked for first: that of halo rows is what most take."""
        return {}

    def arrange(self, problem: Problem) -> Arrangement:
        """Count, choose, and arrange what is chosen.

        Raises:
            ValueError: Unknown method.
            MemoryError: Nothing fits; with numbered ways out.
        """
        candidates = Candidates(problem.graph, problem.part, self.model, problem.topology)
        advice = weigh(candidates, self.memory_limit, preset_rates(problem.topology))
        chosen, (first, second, *_) = advice.best, advice.rows
        self.chosen[:] = [chosen]
        _log.info("%s", advice.table())
        arrangement = chosen.layout(candidates.world_size).arrange(problem)
        call = f", with {first.line}" if chosen.name in ("in-place", "offload") else ""
        why = (
            f"auto chose {chosen}{call}: {first.why}, {seconds(first.seconds.total)} an epoch; {second.strategy}:"
            f" {second.why}"
        )
        return replace(arrangement, why="; ".join(filter(None, (why, arrangement.why))))
