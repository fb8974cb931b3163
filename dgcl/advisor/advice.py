"""Holds the predictions for all strategies of one training job, and prints them as a table with a verdict.

The table has at most 110 columns: the chosen strategy first, others by time of an epoch, refused ones last. ``scaled``
prints one line for each machine and number of ranks instead. Which strategy is chosen is decided in
:mod:`dgcl.advisor.weighing`.
Called by `choice`, `weighing` and `dgcl/cli/advise`; users get an ``Advice`` from ``dgcl.advise``. Free to change while
the table keeps its width, marks and verdict, and an error with numbered ways out says that nothing fits
(`tests/dgcl/advisor/test_choice.py`; ``scaled``: `tests/dgcl/cli/test_advise.py`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dgcl.advisor.advice_row import Row
from dgcl.advisor.counts import Candidates
from dgcl.advisor.device_rates import Rates
from dgcl.advisor.epoch import ERROR, TIMES
from dgcl.advisor.rank_bytes import device_bytes
from dgcl.advisor.spelling import Description
from dgcl.planner.reading.render import ratio, seconds, size
from dgcl.topology.checks import nearest
from dgcl.topology.table import aligned

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


_WIDTH = 110
_PARTIAL = ("cover", "tail", "grid")  # what one vertex reads is on several ranks
_LEFT_OUT = (
    "Left out: the loss, the optimiser's time, ranks that are late, overlap; memory of the allocator and of your"
    " own code."
)


@dataclass(frozen=True, eq=False)
class Advice:
    """What each strategy takes, and which to take; made by :func:`dgcl.advise`.

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
        if self.rows[0].refused:
            raise MemoryError(self.ways_out())
        return self.rows[0].strategy

    def row(self, strategy: str | Description) -> Row:
        """What is said of one of the candidates; by a name alone the best of that name.

        Raises:
            ValueError: It was not among them.
        """
        name = str(strategy)
        names = [row.strategy.name for row in self.rows]
        for known in ([str(row.strategy) for row in self.rows], names):
            if name in known:
                return self.rows[known.index(name)]
        once = ", ".join(dict.fromkeys(names))
        raise ValueError(
            f"strategy must be one that was counted: {once} (got {name!r}){nearest(name, names)}"
        )

    def build(self, **options: Any) -> Communicator:
        """Build a communicator with the strategy to take, for these parts; collective, on every rank."""
        import dgcl

        of = self.candidates
        return dgcl.build_comm_info(of.graph, of.topology, part=of.part, strategy=self.best, **options)

    def table(self) -> str:
        """The screen of ``dgcl advise``: the machine and its rates, the model, a row for each way, the verdict."""
        grids = [row for row in self.rows if row.strategy.name == "grid"]
        rows = [row for row in self.rows if row not in grids[1:]]
        counted = [row for row in self.rows if row.layers]
        planned = sum(row.planner == "auto" for row in counted)
        refused = sum(row.refused for row in self.rows)
        beyond = f", and more, as it is not known: {self.rates.unknown}" if self.rates.unknown else ""
        summary = (
            f"{len(counted)} strategies counted: {planned} planned by auto, {len(counted) - planned} by direct plans"
            f" and bounds; {refused} refused. Model error +-{ERROR:.0%}{beyond} (docs/advise.md)"
        )
        header = ["", "strategy", "epoch", "exchange", "sums", "dense", "device", "host"]
        cells = [_cells(row, rows[0] if number > 1 else None, self) for number, row in enumerate(rows)]
        first, *lines = aligned(header, cells, range(2)).splitlines()
        text = [*_heading(self), "", *textwrap.wrap(summary, _WIDTH), "", first]
        for row, line in zip(rows, lines[-len(rows) :], strict=True):
            why = textwrap.wrap(row.why, _WIDTH - 6) + [f"-> {row.line}"] * bool(row.line)
            text += [line, *(f"      {each}" for each in why)]
        verdict = self.ways_out() if rows[0].refused else f"{rows[0].strategy} is chosen. {_alone(self)}"
        for paragraph in (verdict, _LEFT_OUT):
            text += ["", *textwrap.wrap(paragraph, _WIDTH)]
        return "\n".join(text)

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return {
            "topology": self.candidates.topology.name,
            "ranks": self.candidates.world_size,
            "model": self.candidates.model.text,
            "memory_limit": self.memory_limit,
            "rates": asdict(self.rates),
            "error": ERROR,
            "chosen": None if self.rows[0].refused else str(self.best),
            "rows": [row.to_json() for row in self.rows],
            "alone": self.alone.to_json(),
            "left_out": _LEFT_OUT,
        }

    def ways_out(self) -> str:
        """What to do where nothing fits."""
        counted = [row for row in self.rows if row.layers]
        least = min(counted, key=lambda row: row.device)
        of, limit, need = self.candidates, self.memory_limit or 0, size(least.device)
        chunked = device_bytes(of.count(Description("offload", 10**9)), of.model)  # of one vertex each
        most = {name: int(each.max()) for name, each in chunked.items()}
        hub = most["a chunk's rows and edges"] + most["exchange buffers"]
        fixed = most["parameters"] + most["gradients, optimiser"]  # no number of ranks divides either
        tries = [
            (math.ceil(of.world_size * (1 + (row.device - limit) / room)), row.strategy.name)
            for row in counted
            if (room := limit - fixed - hub * (row.strategy.name not in _PARTIAL)) > 0
        ]
        ways = [f"Give each {need}"]
        if tries:
            ways.append("Take more ranks: try {} with {}".format(*min(tries)))
        elif limit > fixed:
            ways.append(f"Fewer in-edges of the vertex with most: {size(hub)} on any number of ranks")
        ways.append("Narrower layers" + ", or dtype 'bfloat16' (half the rows)" * (of.model.itemsize > 2))
        numbered = " ".join(f"({number}) {way}." for number, way in enumerate(ways, 1))
        return f"nothing fits in {size(limit)} of a rank; {least.strategy} takes least, {need}. {numbered}"


def _heading(advice: Advice, of_machine: bool = True) -> list[str]:
    """The machine and its rates, if asked for, and the model."""
    candidates, limit = advice.candidates, advice.memory_limit
    graph, model = candidates.graph, candidates.model
    each = "" if limit is None else f", {size(limit)} each"
    sizes = "" if candidates.part is not None else ", sizes alone"
    optimizer = model.optimizer if model.training else "inference"
    vertices = getattr(graph, "num_nodes", None) or getattr(graph, "num_vertices", 0)
    lines = (
        f"Machine  {candidates.topology.name}, ranks {candidates.world_size}{each}; rates: {advice.rates.origin}",
        f"Model    {model.text}; {optimizer}, {model.dtype}; vertices {vertices:,}, edges {graph.num_edges:,}{sizes}",
    )
    shown = lines if of_machine else lines[1:]
    return [part for line in shown for part in textwrap.wrap(line, _WIDTH, subsequent_indent=" " * 9)]


def _cells(row: Row, first: Row | None, advice: Advice) -> list[str]:
    """Absolute times, or the ratio to those of the first: this survives a wrong rate."""
    mine, limit = row.seconds, advice.memory_limit
    times = [seconds(getattr(mine, name)) for name in ("total", *TIMES[:3])]
    if row.refused:
        times = ["too big" if row.layers else "refused", "", "", ""]
    elif first is not None:
        times = [ratio(mine.total, first.seconds.total), "", "", ""]
    device = size(row.device) + (f" ({row.device / limit:.0%})" if limit else "") if row.layers else ""
    return [row.state, str(row.strategy), *times, device, size(row.host_bytes) if row.host_bytes else ""]


def _alone(advice: Advice) -> str:
    alone, limit, ranks = advice.alone, advice.memory_limit, advice.candidates.world_size
    mine, theirs = alone.seconds.total, advice.rows[0].seconds.total
    if limit is not None and alone.device > limit:
        return f"1 rank would hold {size(alone.device)}, which is more than {size(limit)}."
    pays = f"{ranks} ranks pay" if mine > theirs * (1 + ERROR) else "1 rank suffices, take it"
    return f"1 rank would hold {size(alone.device)} and take {seconds(mine)}: {pays}."


def scaled(several: Sequence[Advice]) -> str:
    """A line for each machine and number of ranks: epoch, efficiency, and where more ranks bring nothing."""
    lines, shortest, last = [], float("inf"), 0
    same = len({advice.candidates.topology.name.partition("[")[0] for advice in several}) == 1
    for advice in several:
        ranks, first = advice.candidates.world_size, advice.rows[0]
        where = advice.candidates.topology.name
        mine = first.seconds
        if first.refused:
            lines.append([where, str(ranks), "nothing fits", "", "", size(first.device)])
            continue
        if mine.total < shortest * 0.95:
            shortest, last = mine.total, ranks
        efficiency = advice.alone.seconds.total / (ranks * mine.total)
        spent = f"{efficiency:.0%}, exchange {mine.exchange / max(mine.total, 1e-12):.0%}"
        lines.append([where, str(ranks), str(first.strategy), seconds(mine.total), spent, size(first.device)])
    text = [
        *_heading(several[-1], of_machine=same),
        "",
        aligned(["machine", "ranks", "strategy", "epoch", "efficiency", "device"], lines, (0, 2)),
    ]
    if same and last and last < several[-1].candidates.world_size:
        text += ["", f"no gain beyond {last} rank{'s' * (last > 1)}"]
    return "\n".join(text)
