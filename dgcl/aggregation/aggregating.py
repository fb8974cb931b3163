"""The protocol of a communicator as aggregations see it, so that they need not import the communicator.

It lists what sums need: this rank's edges, its exchanges, the transport that moves rows, and the grid.
:class:`dgcl.communicator.Communicator` implements it.
Called by `aggregator`, `contribution_exchange`, `extremes` and `dgcl/communicator`. Free to change while aggregations
use no other attribute and the communicator has each (mypy, ``make types``), and this folder imports no communicator
(`tests/test_architecture.py`).
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from dgcl.aggregation.windowed import HaloWindows
from dgcl.grid.grid import Grid
from dgcl.program.exchange import Exchange
from dgcl.ranks.control import Control
from dgcl.relation.local_graph import LocalGraph
from dgcl.transport.base import Transport


class Aggregating(Protocol):
    """What an aggregator needs of a communicator.

    Attributes:
        rank, world_size, num_nodes: This rank, how many there are, and vertices of the whole graph.
        control: The control plane.
        local: The edges that it sums.
        transport: Moves its rows.
        device: Where they are.
        exchanges: By name.
        edges: The placement of edges.
        was_rewired: Whether it took the place of another one.
        grid: The grid; its slices of rows are what is exchanged and summed.
        windows: In which sums take halo rows unless they have windows of their own; None: all at once.
    """

    rank: int
    world_size: int
    num_nodes: int
    control: Control
    local: LocalGraph
    transport: Transport
    device: torch.device
    exchanges: Mapping[str, Exchange]
    edges: str
    was_rewired: bool
    grid: Grid
    windows: HaloWindows | None

    def collective(self, name: str) -> AbstractContextManager[None]:
        """As :meth:`dgcl.communicator.Communicator.collective`."""

    @property
    def num_owned(self) -> int:
        """Rows that this rank owns."""

    def require_current(self, what: str) -> None:
        """Raise where another communicator has taken the place of this one."""

    def to_items(self, rows: Tensor) -> Tensor:
        """Rows as slices of rows."""

    def from_items(self, items: Tensor, width: int) -> Tensor:
        """Slices of rows as rows."""

    def number_of(self, exchange: str) -> int:
        """The number of an exchange, as the transport calls it."""
