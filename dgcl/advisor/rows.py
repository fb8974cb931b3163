"""What is known of each strategy: a row, and all rows with the one to take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.counts import Candidates, Counted
from dgcl.advisor.epoch import Seconds, total
from dgcl.advisor.memory import totals
from dgcl.advisor.model import OPTIMIZERS
from dgcl.advisor.rates import Rates
from dgcl.advisor.spelling import Description
from dgcl.planner.reading.render import size
from dgcl.topology.checks import nearest

__all__ = ["ERROR", "Row", "Weighed"]

#: What predictions of two strategies' epochs may be wrong against each other (docs/advise.md).
ERROR = 0.15


@dataclass(eq=False)
class Row:
    """What is said of one strategy.

    Attributes:
        strategy: Its description.
        refusal: Why it cannot be taken; "" where it can.
        counted: What it moves and holds.
        layers: Seconds of each; empty where it is refused.
        bound: Seconds of an epoch that no plan of its exchanges beats.
        planner: "auto" or "direct".
        bytes: Of each rank's device, (P,) by name.
        host: Bytes of host memory of all ranks.
        state: "*" chosen, "=" as fast, else "".
        why: One reason.
    """

    strategy: Description
    refusal: str = ""
    counted: Counted | None = None
    layers: list[Seconds] = field(default_factory=list)
    bound: float = math.inf
    planner: str = "direct"
    bytes: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    host: int = 0
    state: str = ""
    why: str = ""

    @property
    def seconds(self) -> Seconds:
        """Of an epoch."""
        return total(self.layers)

    @property
    def device(self) -> int:
        """Bytes of the fullest rank."""
        return int(totals(self.bytes).max()) if self.bytes else 0


@dataclass(frozen=True, eq=False)
class Weighed:
    """What each strategy takes, the chosen one first.

    Attributes:
        candidates: What was counted: graph, part, model and topology.
        rates: Of devices.
        memory_limit: Bytes of a device; None: no bound.
        rows: The chosen one, then by seconds, then what cannot be taken.
        alone: The same on one rank.
    """

    candidates: Candidates
    rates: Rates
    memory_limit: int | None
    rows: list[Row]
    alone: Row

    @property
    def best(self) -> Description:
        """The strategy to take.

        Raises:
            MemoryError: None fits; with numbered ways out.
        """
        if self.rows[0].state != "*":
            raise MemoryError(self.ways_out())
        return self.rows[0].strategy

    def row(self, strategy: str | Description) -> Row:
        """What is said of one of the candidates; by a name alone the best of that name.

        Raises:
            ValueError: It was not among them.
        """
        asked = str(strategy)
        strategies = [row.strategy for row in self.rows]
        names = [each.name for each in strategies]
        for known in ([each.spec for each in strategies], names):
            if asked in known:
                return self.rows[known.index(asked)]
        once = ", ".join(dict.fromkeys(names))
        raise ValueError(
            f"strategy must be one that was counted: {once} (got {asked!r}){nearest(asked, names)}"
        )

    def ways_out(self) -> str:
        """What to do where nothing fits."""
        counted = [row for row in self.rows if row.counted is not None]
        least = min(counted, key=lambda row: row.device)
        limit, model, need = self.memory_limit or 0, self.candidates.model, size(least.device)
        kept = 2 + OPTIMIZERS[model.optimizer] if model.training else 1
        fixed = kept * model.parameters * model.itemsize
        ways = [f"Give each {need}"]
        if limit > fixed:  # which no number of ranks divides
            ranks = math.ceil(self.candidates.world_size * (least.device - fixed) / (limit - fixed))
            ways.append(f"Take {ranks} ranks or more")
        ways.append("Narrower layers" + ", or dtype 'bfloat16' (half the rows)" * (model.itemsize > 2))
        if model.training and model.optimizer != "sgd":
            ways.append("optimizer 'sgd', where parameters are most of it")
        numbered = " ".join(f"({number}) {way}." for number, way in enumerate(ways, 1))
        return f"nothing fits in {size(limit)} of a rank; {least.strategy} takes least, {need}. {numbered}"
