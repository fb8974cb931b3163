"""Index tables of a program's stages: which rows are packed, where arrivals go, and how they are added.

Indices are tensors on the rows' device. Rows that lie together are sent without a copy, and arrivals for one place are
received there. Additions are in a fixed order: in *layers*, in which no row occurs twice.
Called by `call` and `transport`. Free to change while rows and sums are those of shared memory to the bit, and the
bytes sent are those planned (`tests/dgcl/transport/collective/test_transport.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgcl.planner.array_types import ranges
from dgcl.program.rank_program import Program, Schedule
from dgcl.transport.common.calls import count_rows


class Slice(NamedTuple):
    """``num_rows`` arrivals of a stage, from ``start`` on, that go to ``place`` of buffer ``buffer``."""

    buffer: int
    place: int
    start: int
    num_rows: int


class Layer(NamedTuple):
    """One addition: to rows ``places``, each once, what has arrived in ``slots``, ascending; mostly a slice."""

    places: Tensor
    slots: Tensor | slice


class Part(NamedTuple):
    """Rows ``rows`` of buffer ``source``, which are packed at ``places``; None: at all places."""

    source: int
    places: Tensor | None
    rows: Tensor


@dataclass(eq=False)
class Stage:
    """One ``all_to_all_single``.

    Attributes:
        sends, receives: Rows to and from each rank.
        slices: Where arrivals go; a single one is received in place.
        parts: What is packed.
        layers: What is added to it.
        direct: The slice ``(begin, end)`` of the first buffer that is sent as it is; None: rows are packed.
        waits: (peer, what is missing from it), for messages.
    """

    sends: list[int]
    receives: list[int]
    slices: list[Slice]
    parts: list[Part] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    direct: tuple[int, int] | None = None
    waits: list[tuple[int, str]] = field(default_factory=list)

    @property
    def num_packed(self) -> int:
        """Rows that are packed."""
        return 0 if self.direct is not None else sum(self.sends)

    @property
    def num_staged(self) -> int:
        """Rows that arrive in staging memory, because they go to several places."""
        return sum(self.receives) if len(self.slices) > 1 else 0


class Tables:
    """The stages of both verbs of a program, with indices on a device.

    Buffers of an expand are the owned rows, the halo rows and the relay rows; those of a fold the rows that are not
    owned, and what arrives.

    Attributes:
        expand, fold: The stages.
        own_layers: What is added to the owned rows at the end of a fold.
        staged: Rows of staging memory that an expand and a fold need, for the largest of their stages.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program, self._device = program, device
        stages = range(program.num_stages)
        self.expand = [self._expand(stage) for stage in stages]
        self.fold = [self._fold(stage) for stage in stages]
        self.own_layers = self._layers(np.arange(program.num_owned), 0)
        self.staged = tuple(
            max((stage.num_packed + stage.num_staged for stage in verb), default=0)
            for verb in (self.expand, self.fold)
        )

    def _index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self._device)

    def _expand(self, stage: int) -> Stage:
        p, schedule = self.program, self.program.expand
        halo_and_relay = np.array([-p.num_owned, 0])
        result, out = self._stage(schedule, stage, halo_and_relay, (1, 2))
        rows = p.send_rows[ranges(schedule.send_from[out].ravel(), schedule.send_count[out].ravel())]
        bounds = (0, p.num_owned, p.num_local, p.num_local + p.num_relay)
        result.parts = list(self._parts(rows, bounds))
        return result

    def _fold(self, stage: int) -> Stage:
        p, schedule = self.program, self.program.fold
        result, out = self._stage(schedule, stage, np.zeros(2, np.int64), (1, 1))
        rows = ranges(schedule.send_from[out].ravel(), schedule.send_count[out].ravel())
        relayed = (rows >= p.num_local).astype(np.int64)  # which have no row of this rank's, only arrivals
        layers = self._layers(rows, relayed)
        if not relayed.any() and not layers and (np.diff(rows) == 1).all():
            begin = int(rows[0]) - p.num_owned if len(rows) else 0
            result.direct = (begin, begin + len(rows))
            return result
        first = np.searchsorted(p.arrival_rows, rows)
        halo = p.num_halo
        places = np.where(
            relayed, halo + p.arrival_slots[np.minimum(first, p.num_arrivals - 1)], rows - p.num_owned
        )
        result.parts = list(self._parts(places, (0, halo, halo + p.num_arrivals)))
        result.layers = layers
        return result

    def _stage(
        self, schedule: Schedule, stage: int, less: np.ndarray, buffers: tuple[int, int]
    ) -> tuple[Stage, np.ndarray]:
        """A stage with what arrives, and the numbers of its sends."""
        out, into = (np.flatnonzero(of == stage) for of in (schedule.send_stage, schedule.recv_stage))
        sends, receives = np.zeros((2, self.program.world_size), np.int64)
        sends[schedule.send_peer[out]] = schedule.send_count[out].sum(1)
        receives[schedule.recv_peer[into]] = schedule.recv_count[into].sum(1)
        slices: list[Slice] = []
        start = 0
        for i in into:
            for kind in range(2):
                place, count = int(schedule.recv_to[i, kind] + less[kind]), int(schedule.recv_count[i, kind])
                last = slices[-1] if slices else None
                if count and last and last.buffer == buffers[kind] and last.place + last.num_rows == place:
                    slices[-1] = last._replace(num_rows=last.num_rows + count)
                elif count:
                    slices.append(Slice(buffers[kind], place, start, count))
                start += count
        waits = [
            (peer, f"stage {stage}: {count_rows(counts[peer])} {what} rank {peer}")
            for counts, what in ((receives, "missing from"), (sends, "not taken by"))
            for peer in np.flatnonzero(counts).tolist()
        ]
        return Stage(sends.tolist(), receives.tolist(), slices, waits=waits), out

    def _parts(self, rows: np.ndarray, bounds: tuple[int, ...]) -> Iterator[Part]:
        """Rows by the buffers that they are in; buffer b holds ``bounds[b]`` to ``bounds[b + 1]``."""
        source = np.searchsorted(bounds, rows, side="right") - 1
        for number in np.unique(source):
            places = np.flatnonzero(source == number)
            index = self._index(rows[places] - bounds[number])
            yield Part(int(number), None if len(places) == len(rows) else self._index(places), index)

    def _layers(self, rows: np.ndarray, skip: np.ndarray | int) -> list[Layer]:
        """What arrives for rows, by slots, which are those of a row in its order; ``skip`` of each are left out.

        A layer ends where one of its rows comes again: mostly with the rows of a sender.
        """
        p = self.program
        begin, end = (np.searchsorted(p.arrival_rows, rows, side) for side in ("left", "right"))
        arrivals = ranges(begin + skip, end - begin - skip)
        slots, places = p.arrival_slots[arrivals], np.repeat(np.arange(len(rows)), end - begin - skip)
        again = np.r_[False, places[1:] == places[:-1]]
        before = np.where(again, np.roll(slots, 1), -1)  # the slot of the same row that comes before
        order = np.argsort(slots)
        slots, places, before = slots[order], places[order], before[order]
        layers = []
        while len(slots):
            size = int(np.argmax(before >= slots[0])) or len(slots)
            first, last = slots[0], slots[size - 1] + 1
            dense = slice(first, last) if last - first == size else self._index(slots[:size])
            layers.append(Layer(self._index(places[:size]), dense))
            slots, places, before = slots[size:], places[size:], before[size:]
        return layers
