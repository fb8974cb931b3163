"""Decides whether a layer's aggregate is kept for the backward or computed again, by predicted seconds and free memory.

For rows of b bytes, with n rows of a rank, l of them loaded in a forward, and E in-edges::

    kept     n b written, n b read; and n b read for a module that wants own rows
    again    l b read and E edges summed, one after the other (with prefetch the longer of both);
             the exchanges of a forward

Ranks wait for each other in every batch, so the slowest counts. What a byte and an edge take is measured once, on all
ranks at the same time. Exchanges are taken to scale with b. Left out: that scattered rows are read more slowly than
stretches, and that writing may go on while the next chunk is computed.

Both ways give the same bits: an aggregate that is made again is the same sum in the same order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.frameworks.layer_work import measure_together
from dgcl.offload.host_store import HostStore
from dgcl.planner.reading.render import size
from dgcl.ranks.control import Control
from dgcl.ranks.machines import places_of_ranks
from dgcl.ranks.whole_rows import agree
from dgcl.transport.row_checks import version_of

__all__ = ["ConstantAggregates", "Keeping", "KeptOrAgain", "RankShare", "Rates", "choose"]

#: Rows as wide as the aggregate that must fit beside one another: it, the layer's result, and gradients of two layers.
ROOM: Final = 4

_PROBE = (2048, 1024)  # float32: 8 MiB
_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class Rates:
    """Seconds of a byte of host memory that is read or written, and of a byte of a row that an edge adds."""

    read: float
    write: float
    edge: float


@dataclass(frozen=True)
class RankShare:
    """What one rank has to do.

    Attributes:
        rows: Its own.
        loads: Rows that it loads from host memory in a forward.
        edges: In-edges of its rows.
        free: Bytes of host memory that it may still take.
    """

    rows: int
    loads: int
    edges: int
    free: int


@dataclass(frozen=True)
class KeptOrAgain:
    """A decision, the same on every rank.

    Attributes:
        kept: Whether the aggregate is kept.
        seconds_kept, seconds_again: Predicted, of the slowest rank.
        needed, free: Bytes of host memory, of the rank that has the least room to spare.
    """

    kept: bool
    seconds_kept: float
    seconds_again: float
    needed: int
    free: int

    def __str__(self) -> str:
        kept, again = f"{self.seconds_kept:.3g} s", f"{self.seconds_again:.3g} s"
        if self.kept:
            return f"kept: predicted {kept} for it, {again} to make it again"
        if self.needed > self.free:
            return (
                f"made again: to keep it takes {size(self.needed)} of host memory with what follows it, and"
                f" {size(self.free)} are free (predicted {again}, kept {kept})"
            )
        return f"made again: predicted {again} for that, {kept} to keep it"


def choose(
    shares: Sequence[RankShare],
    rates: Rates,
    exchange_seconds: float,
    row_bytes: int,
    *,
    own_rows: bool = False,
    prefetch: bool = False,
) -> KeptOrAgain:
    """Decide for a layer.

    Args:
        shares: Of all ranks.
        rates: Of the slowest rank.
        exchange_seconds: Of the exchanges of a forward with rows of ``row_bytes``.
        row_bytes: Bytes of a row of the layer's input.
        own_rows: The module wants own rows beside the aggregate.
        prefetch: Loads go on while a chunk is computed.
    """
    together = max if prefetch else lambda one, other: one + other
    kept = max(each.rows for each in shares) * row_bytes * (rates.write + rates.read * (1 + own_rows))
    again = exchange_seconds + row_bytes * max(
        together(each.loads * rates.read, each.edges * rates.edge) for each in shares
    )
    least = max(shares, key=lambda each: ROOM * each.rows * row_bytes - each.free)
    needed = ROOM * least.rows * row_bytes
    keeps = needed <= least.free and bool(kept <= again)
    return KeptOrAgain(keeps, kept, again, needed, least.free)


class Keeping:
    """Decides once for each kind of layer; measures when the first decision is to be made.

    Args:
        control, store: Between ranks; host memory.
        counts: (rows, loads, edges) of this rank, as in :class:`RankShare`.
        byte_seconds: Of the exchanges of a forward, for a byte of a row.
        prefetch: Loads go on while a chunk is computed.

    Attributes:
        made: The decisions so far, by what they are about, in words.
    """

    def __init__(
        self,
        control: Control,
        store: HostStore,
        counts: tuple[int, int, int],
        byte_seconds: float,
        prefetch: bool,
    ) -> None:
        self._control, self._store, self._counts = control, store, counts
        self._byte_seconds, self._prefetch = byte_seconds, prefetch
        self._measured: tuple[Rates, int] | None = None
        self.made: dict[str, KeptOrAgain] = {}

    def keeps(self, name: str, row_bytes: int, own_rows: bool) -> bool:
        """Whether a layer's aggregate is kept; logged at INFO when it is decided. Collective.

        Args:
            name: Of the layer that asks first, for people.
            row_bytes, own_rows: As for :func:`choose`.

        Raises:
            OSError: The store has no room for a few megabytes; on every rank.
        """
        about = f"aggregates of {row_bytes} bytes a row{' and own rows' if own_rows else ''}"
        if about not in self.made:
            if self._measured is None:
                self._measured = self._measure(row_bytes)
            rates, sharing = self._measured
            free = self._store.free_bytes() // sharing
            shares = self._control.exchange(RankShare(*self._counts, free))
            decision = choose(
                shares,
                rates,
                self._byte_seconds * row_bytes,
                row_bytes,
                own_rows=own_rows,
                prefetch=self._prefetch,
            )
            self.made[about] = decision
            if self._control.rank == 0:
                _log.info("offload: %s (%s) are %s", about, name, decision)
        return self.made[about].kept

    def _measure(self, row_bytes: int) -> tuple[Rates, int]:
        """Rates of the slowest rank, and how many ranks share this machine. Collective."""
        places = places_of_ranks(self._control)
        mine = places[self._control.rank].machine
        work = measure_together(self._control, row_bytes)
        assert work is not None
        measured, problem = (0.0, 0.0), None
        try:
            measured = host_seconds(self._store)
        except OSError as error:
            problem = error
        agree(self._control, problem)
        read, write = map(max, zip(*self._control.exchange(measured), strict=True))
        return Rates(read, write, work.edge / row_bytes), sum(place.machine == mine for place in places)


class ConstantAggregates:
    """Aggregates of rows that never change, by the rows; they go with them."""

    def __init__(self) -> None:
        self._of: Any = WeakTensorKeyDictionary()

    def get(self, x: Tensor, aggregate: str | None, edge_weight: Tensor | None) -> Tensor | None:
        """That of ``x``, if it was made.

        Raises:
            RuntimeError: ``x`` or the weights were changed since.
        """
        entries: Mapping[Any, Any] = self._of.get(x, {})
        versions, result, _ = entries.get((aggregate, id(edge_weight)), (None, None, None))
        if versions is not None and versions != (version_of(x), version_of(edge_weight)):
            raise RuntimeError(
                "x or edge_weight was changed in place after a layer with constant=True had aggregated it; leave them"
                " as they are, or pass constant=False"
            )
        return result

    def put(
        self, x: Tensor, aggregate: str | None, edge_weight: Tensor | None, result: Tensor | None
    ) -> None:
        """Keep it, and the weights, by whose identity it is known."""
        self._of.setdefault(x, {})[aggregate, id(edge_weight)] = (
            (version_of(x), version_of(edge_weight)),
            result,
            edge_weight,
        )


def host_seconds(store: HostStore) -> tuple[float, float]:
    """Seconds of a byte (read, written), by a few megabytes that the store's account does not see.

    Raises:
        OSError: No room.
    """
    probe = HostStore(store.folder, store.cached)
    values, seconds = torch.zeros(_PROBE), [0.0, 0.0]
    rows = probe.empty(_PROBE, values.dtype)
    every = slice(0, len(values))
    for _ in range(2):  # the first makes pages
        for number, move in enumerate(
            (lambda: probe.write(rows, every, values), lambda: probe.read(rows, every))
        ):
            begin = time.perf_counter()
            move()
            seconds[number] = (time.perf_counter() - begin) / values.nbytes
    written, read = seconds
    return read, written
