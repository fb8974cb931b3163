"""State of one call of the collective transport; packs, sends and stores the rows of its stages.

A plan has stages, and every rank takes part in each, also without rows. Rows that only travel are moved as integers of
their size, so no operation of their own type is needed; 16-bit floats are added in float32 and rounded when they are
sent on.
Called by `agreement` and `transport`. Free to change while expands and folds give the bits of shared memory, for every
element type, width and plan (`tests/dgcl/transport/collective/test_transport.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.transport.collective.stage_table import Layer, Slice, Stage
from dgcl.transport.collective.wires import Wire
from dgcl.transport.common.calls import UnderWay
from dgcl.transport.common.control_page import ControlPage

#: Element types that move as integers, by their bytes: what only travels needs no operation of its own type.
_MOVED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(eq=False)
class Call(UnderWay):
    """The stages of one verb of an exchange.

    Attributes:
        number, label, tag: The call, and what all ranks compare.
        stages: What is to be done.
        buffers: Rows by the numbers that the stages have for them, ``(n, width)`` each.
        staging: ``(n, width)`` memory for rows to be packed, and for those that arrive for several places.
        sent: ``(P,)`` bytes so far, added to.
        stage: The one that is under way.
        work: What the wire has of it.
        pending: The ranks whose messages are not over, the next one first.
        agreed: Whether ranks without shared memory have compared it.
        partners, pages, is_gone: The ranks that it concerns; all ranks' control pages; whether one will not answer.
    """

    number: int
    label: str
    tag: int
    stages: Sequence[Stage]
    buffers: Sequence[Tensor]
    staging: Tensor
    sent: np.ndarray
    stage: int = 0
    work: Any = None
    pending: Sequence[int] = ()
    agreed: bool = False
    partners: Sequence[int] = ()
    pages: Sequence[ControlPage] = ()
    is_gone: Callable[[int], object] = bool

    @property
    def order(self) -> int:
        """It grows with calls and their stages; before the first one ranks compare their calls."""
        return self.number << 32 | (self.stage + 1 if self.agreed else 0)

    @property
    def over(self) -> bool:
        """Whether all stages are done."""
        return self.stage == len(self.stages)

    @property
    def place(self) -> str:
        """The stage in words."""
        return "its end" if self.over else f"stage {self.stage}"

    @property
    def waits(self) -> list[tuple[int, str]]:
        """Which peers the stage waits for, and what each has to do; else which have not begun the call.

        While messages are under way the next one's rank alone, and ranks that are gone: others' may have arrived.
        """
        words = "stage 0: rank {} is not ready to receive rows"
        if self.agreed and self.over:
            return [(peer, words.format(peer)) for peer in self.partners if self.lacks(peer)]
        certain = [peer for i, peer in enumerate(self.pending) if i == 0 or self.is_gone(peer)]
        if not self.agreed:
            return [(peer, words.format(peer)) for peer in certain]
        return [(peer, what) for peer, what in self.stages[self.stage].waits if peer in certain]

    def lacks(self, peer: int) -> bool:
        """Whether a peer has not begun the call; of one that has, rows may be on their way."""
        return self.pages[peer].current_call()[0] < self.number

    def post(self, wire: Wire) -> None:
        """Send a stage. Every rank takes part in each, also without rows."""
        stage = self.stages[self.stage]
        packed = self._pack(stage)
        arrived = moved(self.staging[stage.num_packed :][: sum(stage.receives)])
        self._arrived = self._target(stage.slices[0]) if len(stage.slices) == 1 else arrived
        self.sent += np.array(stage.sends) * (packed.shape[1] * packed.element_size())
        byte = torch.uint8
        self.work = wire.post(self._arrived.view(byte), packed.view(byte), stage.receives, stage.sends)

    def end_stage(self) -> None:
        """Put what has arrived where it belongs, and go on to the next stage."""
        slices = self.stages[self.stage].slices
        for each in slices if len(slices) > 1 else ():
            self._target(each).copy_(self._arrived[each.start : each.start + each.num_rows])
        self.stage += 1

    def _target(self, each: Slice) -> Tensor:
        return moved(self.buffers[each.buffer][each.place : each.place + each.num_rows])

    def _pack(self, stage: Stage) -> Tensor:
        if stage.direct is not None:
            return moved(self.buffers[0][slice(*stage.direct)])
        packed = self.staging[: stage.num_packed]
        if not stage.layers:
            return _gather(stage, [moved(rows) for rows in self.buffers], moved(packed))
        sums = _gather(stage, self.buffers, widened(packed))
        add_layers(sums, stage.layers, self.buffers[1])
        return moved(sums if sums is packed else packed.copy_(sums))


def moved(rows: Tensor) -> Tensor:
    """Rows as integers of the same size."""
    return rows.view(_MOVED.get(rows.element_size(), rows.dtype))


def widened(rows: Tensor) -> Tensor:
    """Rows in the type in which they are added: 16-bit floats in float32, others themselves."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def add_layers(sums: Tensor, layers: Sequence[Layer], arrivals: Tensor) -> None:
    """Add what has arrived to rows of sums, in a fixed order."""
    for places, slots in layers:
        sums.index_add_(0, places, arrivals[slots].to(sums.dtype))


def _gather(stage: Stage, buffers: Sequence[Tensor], packed: Tensor) -> Tensor:
    """Pack the rows of a stage."""
    for source, places, index in stage.parts:
        rows = buffers[source]
        if places is None and rows.dtype is packed.dtype:
            torch.index_select(rows, 0, index, out=packed)
        else:
            packed[slice(None) if places is None else places] = rows.index_select(0, index).to(packed.dtype)
    return packed
