"""Rows of the whole graph: features and edge data to their ranks, results back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from numbers import Integral
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dgcl.aggregation.once import refusing
from dgcl.autograd.fetch import fetch_rows
from dgcl.program.layout import Layout
from dgcl.ranks.control import Control, Listener
from dgcl.ranks.handle import Handle
from dgcl.ranks.requests import Requests
from dgcl.ranks.tensors import beside_the_graph, refuse_transforms, require_tensors, untransformed
from dgcl.ranks.whole_rows import agree, collect_rows, dispatch_rows, require_same
from dgcl.relation.local_graph import LocalGraph
from dgcl.topology.checks import check_flag, check_path, shown
from dgcl.transport.base import Transport
from dgcl.transport.row_checks import check_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


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
    edges: str
    require_neighbourhoods: Callable[[str], None]
    timeout: float
    _calls: Listener | None
    require_current: Callable[[str], None]
    _halo: int
    node_types: Mapping[str, tuple[int, int]] = MappingProxyType({})
    _part: Tensor | None = None

    @property
    @untransformed
    def part(self) -> Tensor:
        """``(num_nodes,)`` int32, the owner of each vertex; read only. Collective when it is first read, then kept."""
        if self._part is None:
            part = torch.empty(self.num_nodes, dtype=torch.int32, device="cpu")
            with self.collective("part"):
                for rank, ids in enumerate(self.control.exchange(self.layout.owned_ids)):
                    part[torch.from_numpy(ids)] = rank
            self._part = part
        return self._part

    def keep_part(self, part: NDArray[np.int32]) -> None:
        """Keep the owner of each vertex, which all ranks know already."""
        self._part = torch.from_numpy(part)

    @beside_the_graph
    def fetch(self, rows: Tensor, ids: Tensor, node_type: str | None = None) -> Tensor:
        """Rows of vertices anywhere; see :func:`dgcl.fetch`."""
        problem = None
        try:
            self.require_current("fetch")
            mine, first, number = self._vertices(node_type)
            check_rows(rows, len(mine), "num_owned", self.rank, self.device, any_device=True)
            _check_ids(ids, number)
        except (TypeError, ValueError) as error:
            problem = error
        with self.collective("fetch"):
            self._agree_on_kind(problem, rows, "rows")
            part = self.part.numpy()[first : first + number]
            return fetch_rows(self.control, self.collective, rows, ids.cpu().numpy(), part, mine)

    def _agree_on_kind(self, problem: Exception | None, rows: Tensor, name: str) -> None:
        """Raise on every rank if one has a problem, or rows of another kind. Collective."""
        kind = None if problem is not None else (tuple(rows.shape[1:]), rows.dtype)
        kinds = agree(self.control, problem, kind)
        require_same(**{f"trailing shape and dtype of {name}": kinds})

    def _vertices(self, node_type: str | None) -> tuple[NDArray[np.int64], int, int]:
        """Of a type, or of all: the ids that this rank owns, from 0; the first in the whole graph; their number."""
        ids = self.layout.owned_ids
        if node_type is None:
            return ids, 0, self.num_nodes
        if node_type not in self.node_types:
            raise ValueError(f"node_type must be one of {list(self.node_types)} (got {node_type!r})")
        first, number = self.node_types[node_type]
        return ids[(ids >= first) & (ids < first + number)] - first, first, number

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Give calls on the control plane a name for messages; they fail when a rank is late or has left this one."""
        return self.control.collective(name, self._calls, self.timeout)

    @beside_the_graph
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
        self.require_current("dispatch_features")
        if check_flag(halo, "halo"):
            self.require_neighbourhoods("dispatch_features(halo=True)")
        ids = self.layout.owned_ids
        with self.collective("dispatch_features"):
            rows = dispatch_rows(
                self.control, features, self.num_nodes, ids, "features", "vertices", self.num_edges
            )
        rows = rows.to(self.device)
        return self.transport.expand(rows, self._halo) if halo else rows

    @beside_the_graph
    def dispatch_edges(self, values: Tensor | ArrayLike | None) -> Tensor:
        """This rank's rows of per-edge data, one per edge of the local graph.

        Args:
            values: ``(num_edges, *F)`` in the order of the given edges: row k is of column k of an ``edge_index``, of
                DGL's edge k (all orders: :func:`dgcl.graph.as_graph`); on rank 0 alone or on every rank. Where
                each rank gave its own edges (:func:`dgcl.build_from_local`): theirs, in their order; collective where
                other ranks sum some of them.

        Returns:
            ``(num_local_edges, *F)`` on this rank's device, row ``k`` for edge ``local.edge_ids[k]``: the
            order of ``at_sources``, of ``g.edge_index``, and of the edges of the DGL block.
        """
        self.require_current("dispatch_edges")
        ids = self.local.edge_ids
        if self.local.first_edges is not None:
            return self._rows_of_edges(values, self.local.first_edges, ids).to(self.device)
        with self.collective("dispatch_edges"):
            rows = dispatch_rows(self.control, values, self.num_edges, ids, "values", "edges")
        return rows.to(self.device)

    def _rows_of_edges(self, values: Any, first: NDArray[np.int64], ids: NDArray[np.int64]) -> Tensor:
        """Rows of the edges that this rank sums, of which each rank has those that it gave."""
        rows, problem = torch.zeros(0, device="cpu"), None
        number = first[self.rank + 1] - first[self.rank]
        try:
            rows = torch.as_tensor(values, device="cpu")
            if rows.dim() == 0 or len(rows) != number:
                raise ValueError(
                    f"values must have one row for each of the {number} edges of rank {self.rank}, in the order in"
                    f" which it gave them (got shape {tuple(rows.shape)})"
                )
        except (RuntimeError, TypeError, ValueError) as error:
            problem = error
        if self.edges == "head":
            if problem is not None:
                raise problem
            return rows[torch.from_numpy(ids - first[self.rank])]
        with self.collective("dispatch_edges"):
            self._agree_on_kind(problem, rows, "values")
            owner = np.searchsorted(first, ids, side="right") - 1
            requests = Requests(self.control, ids - first[owner], owner)
            return requests.answer([rows[torch.from_numpy(each)] for each in requests.incoming])

    @beside_the_graph
    def collect(
        self,
        rows: Tensor | Mapping[str, Tensor],
        dst: int | None = 0,
        *,
        file: str | PathLike[str] | None = None,
    ) -> Any:
        """Owned rows of all ranks back in global order.

        Args:
            rows: ``(num_owned, *F)``; or such rows by type of vertices, of a graph that was dispatched with types.
            dst: The rank that gets them; None for every rank.
            file: Write them there as ``.npy`` (by rank ``dst``) instead of returning them.

        Returns:
            ``(num_nodes, *F)`` on ``dst``; None elsewhere, and when written to a file.

        Raises:
            ValueError, TypeError: Wrong rows on some rank, or a file that cannot be written; raised on every
                rank.
        """
        if isinstance(rows, Mapping):
            unknown = [name for name in rows if name not in self.node_types]
            problem = ValueError(
                f"rows must be by type of vertices, {list(self.node_types)} (got {list(rows)}); a graph has types where"
                " dgcl.dispatch was given a HeteroData"
            )
            with self.collective("collect"):
                names = agree(self.control, problem if unknown else None, list(rows))
            require_same(**{"types of rows": names})
            return {
                name: self._collect("collect", rows[name], dst, None, *self._vertices(name)[::2])
                for name in rows
            }
        return self._collect("collect", rows, dst, file, self.layout.owned_ids, self.num_nodes)

    @beside_the_graph
    def collect_edges(
        self, values: Tensor, dst: int | None = 0, *, file: str | PathLike[str] | None = None
    ) -> Tensor | None:
        """Rows of this rank's edges, as :meth:`dispatch_edges` gives them, back in the order of the user's edges.

        Args:
            values: ``(num_local_edges, *F)``.
            dst, file: As of :meth:`collect`.

        Returns:
            ``(num_edges, *F)`` on ``dst``; None elsewhere, and when written to a file.
        """
        self.require_neighbourhoods("collect_edges")
        return self._collect("collect_edges", values, dst, file, self.local.edge_ids, self.num_edges)

    def _collect(
        self,
        name: str,
        rows: Tensor,
        dst: int | None,
        file: str | PathLike[str] | None,
        ids: NDArray[np.int64],
        num_rows: int,
    ) -> Tensor | None:
        refuse_transforms(name)
        problem = None
        try:
            self.require_current(name)
            words = "num_owned" if name == "collect" else "num_local_edges"
            check_rows(rows, len(ids), words, self.rank, self.device, any_device=True)
            if dst is not None and not (
                isinstance(dst, Integral) and not isinstance(dst, bool) and 0 <= dst < self.world_size
            ):
                raise ValueError(f"dst must be a rank below {self.world_size} or None (got {shown(dst)})")
            if file is not None:
                check_path(file, "file")
        except (TypeError, ValueError) as error:
            problem = error
        with self.collective(name):
            agree(self.control, problem)
            result = collect_rows(self.control, rows, ids, num_rows, dst, file)
        if result is None or not (rows.requires_grad and torch.is_grad_enabled()):
            return result
        return refusing(
            "collected rows carry no gradient back: collect rows.detach(), or take a loss of this rank's rows"
            " (dgcl.nn.loss), or of rows from anywhere (dgcl.fetch)",
            result,
            rows,
        )


def _check_ids(ids: Tensor, num_nodes: int) -> None:
    """Refuse what are no ids of vertices."""
    require_tensors(ids=ids)
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1:
        raise TypeError(
            f"ids must be (n,) int64 or int32, ids of vertices in the whole graph (got {ids.dtype}, shape"
            f" {tuple(ids.shape)}); a mask selects rows by itself: rows[mask]"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        raise ValueError(
            f"ids must lie in [0, {num_nodes}), vertices of the whole graph (got {int(ids.min())} to {int(ids.max())})"
        )
