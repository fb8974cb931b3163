"""Decides whether a layer's aggregate (sums over neighbours) is kept for the backward, or made again there.

It is kept where host memory has room for ``ROOM`` (4) times its size on the rank that has least to spare; decided once
for each width of rows, the same on all ranks. Both ways give the same bits: an aggregate that is made again is the same
sum in the same order. Aggregates of rows that never change are kept as long as these rows.
Called by `offload`. Free to change while room decides to the byte, and both ways give the same bits
(`tests/dgcl/offload/test_keeping.py`); constant rows are aggregated once (`tests/dgcl/offload/test_layer.py`).
"""

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.offload.host_store import HostStore
from dgcl.planner.reading.render import size
from dgcl.ranks.control import Control
from dgcl.ranks.machines import places_of_ranks
from dgcl.transport.row_checks import version_of

#: Rows as wide as the aggregate that must fit beside one another: it, the layer's result, and gradients of two layers.
ROOM = 4

_log = logging.getLogger("dgcl")


class Keeping:
    """Decides once for each width of rows.

    Args:
        control, store: Between ranks; host memory.
        rows: This rank's own.

    Attributes:
        decisions: (kept, why), the same on every rank, by what they are about, in words.
    """

    def __init__(self, control: Control, store: HostStore, rows: int) -> None:
        self._control, self._store, self._rows = control, store, rows
        self.decisions: dict[str, tuple[bool, str]] = {}

    def keeps(self, name: str, row_bytes: int) -> bool:
        """Whether a layer's aggregate is kept; logged at INFO when it is decided. Collective.

        Args:
            name: Of the layer that asks first, for people.
            row_bytes: Bytes of a row of the layer's input.
        """
        about = f"aggregates of {row_bytes} bytes a row"
        if about not in self.decisions:
            places = places_of_ranks(self._control)
            sharing = sum(place.machine == places[self._control.rank].machine for place in places)
            mine = ROOM * self._rows * row_bytes, self._store.free_bytes() // sharing
            # of the rank that has the least room to spare
            needed, free = min(self._control.exchange(mine), key=lambda each: each[1] - each[0])
            kept = needed <= free
            why = (
                f"{'kept: that' if kept else 'made again: to keep it'} takes {size(needed)} of host memory with what"
                f" follows it, and {size(free)} are free"
            )
            self.decisions[about] = kept, why
            if self._control.rank == 0:
                _log.info("offload: %s (%s) are %s", about, name, why)
        return self.decisions[about][0]


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
