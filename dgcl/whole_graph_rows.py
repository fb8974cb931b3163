"""Rows of the whole graph: features and edge data to their ranks, results back."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgcl.program.layout import Layout
from dgcl.ranks.control import Control
from dgcl.ranks.handle import Handle
from dgcl.ranks.whole_rows import agree, collect_rows, dispatch_rows
from dgcl.relation.local_graph import LocalGraph
from dgcl.topology.checks import check_flag, check_path, shown
from dgcl.transport.base import Transport
from dgcl.transport.row_checks import check_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class WholeGraphRows(Handle):
    """The part of a communicator that hands rows of the whole graph out, and collects them."""

    rank: int
    world_size: int
    num_nodes: int
    num_edges: int
    control: Control
    transport: Transport
    local: LocalGraph
    layout: Layout
    device: torch.device
    feature_dtype: torch.dtype | None
    edges: str
    require_neighbourhoods: Callable[[str], None]
    _halo: int

    def dispatch_features(self, features: Tensor | ArrayLike | None, *, halo: bool = False) -> Tensor:
        """This rank's rows of a feature matrix of the whole graph.

        They are constants: no gradient goes back to ``features``. Inputs that are learned are parameters of their
        own on each rank, made of its rows.

        Args:
            features: ``(num_nodes, *F)``, torch or numpy, any dtype, on rank 0 alone (others pass None) or on
                every rank (then nothing is sent).
            halo: Return the halo rows as well, exchanged here once: for an input that never changes, use
                this instead of exchanging it again in the first layer of every step. The rows are held in
                the communicator's memory (``num_halo`` rows more than without) as long as the tensor lives.
                They are constants: a gradient that they got would not reach their owners.

        Returns:
            ``(num_owned, *F)``; with ``halo`` ``(num_local, *F)``, bit for bit what :meth:`expand` gives.

        Raises:
            ValueError: No rank 0 features, or a wrong number of rows; raised on every rank.
        """
        if check_flag(halo, "halo") and self.edges != "head":
            self.require_neighbourhoods("dispatch_features(halo=True)")
        ids = self.layout.owned_ids
        rows = dispatch_rows(self.control, features, self.num_nodes, ids, "features", "vertices")
        rows = rows.to(self.device)
        self.feature_dtype = rows.dtype if rows.is_floating_point() else self.feature_dtype
        return self.transport.expand(rows, self._halo) if halo else rows

    def dispatch_edges(self, values: Tensor | ArrayLike | None) -> Tensor:
        """This rank's rows of per-edge data, one per edge of the local graph.

        Args:
            values: ``(num_edges, *F)`` in the order of the given edges: row k is of column k of an ``edge_index``, of
                DGL's edge k (all orders: :func:`dgcl.graph.as_graph`); on rank 0 alone or on every rank.

        Returns:
            ``(num_local_edges, *F)`` on this rank's device, row ``k`` for edge ``local.edge_ids[k]``: the
            order of ``at_sources``, of ``g.edge_index``, and of the edges of the DGL block.
        """
        if self.edges == "streamed":
            raise ValueError(
                "dispatch_edges gives data to the rank that has an edge, and with adjacency='streamed' edges have none:"
                " they come and go; build the communicator with adjacency='held'"
            )
        ids = self.local.edge_ids
        return dispatch_rows(self.control, values, self.num_edges, ids, "values", "edges").to(self.device)

    def collect(
        self, rows: Tensor, dst: int | None = 0, *, file: str | PathLike[str] | None = None
    ) -> Tensor | None:
        """Owned rows of all ranks back in global order; of a vertex with replicas, its owner's.

        Args:
            rows: ``(num_owned, *F)``.
            dst: The rank that gets them; None for every rank.
            file: Write them there as ``.npy`` (by rank ``dst``) instead of returning them.

        Returns:
            ``(num_nodes, *F)`` on ``dst``; None elsewhere, and when written to a file.

        Raises:
            ValueError, TypeError: Wrong rows on some rank, or a file that cannot be written; raised on every
                rank.
        """
        problem = None
        try:
            check_rows(rows, self.layout.num_owned, "num_owned", self.rank, self.device, any_device=True)
            if dst is not None and not (
                isinstance(dst, Integral) and not isinstance(dst, bool) and 0 <= dst < self.world_size
            ):
                raise ValueError(f"dst must be a rank below {self.world_size} or None (got {shown(dst)})")
            if file is not None:
                check_path(file, "file")
        except (TypeError, ValueError) as error:
            problem = error
        own = slice(self.layout.num_core)
        with self.control.collective("collect"):
            agree(self.control, problem)
            ids = self.layout.owned_ids[own]
            return collect_rows(self.control, rows[own], ids, self.num_nodes, dst, file)
