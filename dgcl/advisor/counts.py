"""Counts the rows that each rank sends, the edges it sums and the rows it holds, for each strategy.

Also lists the candidates for a model, simplest first, and refuses those that the model or the machine rules out. All
strategies use the same partition. Rows are counted exactly where there is a graph; for sizes alone
(:class:`~dgcl.planner.synthetic.GraphShape`) a smaller relation (which ranks want which rows) is drawn at random and
scaled. Chunks of offload are an estimate.
Called by `choice`, `auto_strategy`, `weighing`, `rank_bytes` and others. Free to change while rows, edges and owned
vertices are those of communicators that are built with each strategy (`tests/dgcl/advisor/test_choice.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dgcl.advisor.layers import WHOLE
from dgcl.advisor.model_costs import Model
from dgcl.advisor.spelling import Description
from dgcl.graph import Graph
from dgcl.grid.grid import as_grid, legal_grids
from dgcl.grid.items import expand_demand, fold_demand
from dgcl.grid.needs import find_needs
from dgcl.offload.offload_prediction import MOVED_BYTES, OWN_BYTES, DeviceRows
from dgcl.placement.placement_strategy import EdgePlacement
from dgcl.planner.relation import Relation
from dgcl.planner.synthetic import GraphShape, synthetic_relation
from dgcl.relation.classes import halo_classes
from dgcl.topology import Topology

_DRAWN = 50_000  # vertices of a relation that is drawn for sizes alone


class Refused(Exception):
    """A strategy cannot be taken, and why."""


@dataclass(frozen=True, eq=False)
class Counted:
    """What a strategy moves, sums and holds.

    Attributes:
        strategy: Its description.
        topology: Whose links are used.
        expand: Who wants which rows, or slices of them.
        fold: Who contributes partial sums to which; None: nobody does.
        owned: (P,) rows that each rank computes.
        edges: (P,) edges that it sums, at the width of a slice.
        slices: Of a row.
        edge_order: Whether edges have an order of their own.
        chunks: Rows of each rank's device memory in offloading.
        excess: Of ``rows``, how many a minimum cover may save, where it was not found.
    """

    strategy: Description
    topology: Topology
    expand: Relation
    fold: Relation | None
    owned: NDArray[np.int64]
    edges: NDArray[np.int64]
    slices: int = 1
    edge_order: bool = False
    chunks: Sequence[DeviceRows] = ()
    excess: int = 0

    @property
    def rows(self) -> int:
        """Rows, or slices of them, that all ranks receive in an aggregation."""
        return self.expand.deliveries + (0 if self.fold is None else self.fold.deliveries)

    @property
    def exchanges(self) -> tuple[Relation, Relation | None]:
        """By which those are known that exchange the same."""
        return self.expand, self.fold

    @cached_property
    def travelling(self) -> NDArray[np.int64]:
        """(4, P) rows that each rank receives before it sums, and sends; partial sums that it makes for others, and
        those that others make for it. In the backward all go the other way."""
        none = 0 * self.expand.pair_rows()
        pairs = (none if each is None else each.pair_rows() for each in self.exchanges)
        return np.array([rows.sum(axis) for rows in pairs for axis in (0, 1)])


@dataclass(eq=False)
class Candidates:
    """The strategies for a model on a graph in parts, counted one by one.

    Attributes:
        graph: The graph, or sizes alone.
        part: (N,) the owner of each vertex; None for sizes alone.
        model, topology: What is trained, on which machine; its devices are the ranks.
        seed: Of what is drawn for sizes alone.
    """

    graph: Graph | GraphShape
    part: NDArray[np.int32] | None
    model: Model
    topology: Topology
    seed: int = 0

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.topology.num_devices

    def names(self) -> list[Description]:
        """All that might be taken, the simplest first."""
        return [
            *(Description(name) for name in ("halo", "cover", "tail")),
            Description("cover", "machine"),
            *(  # but what is the ordinary way, or "tail"
                Description("grid", grid)
                for grid in legal_grids(self.world_size)
                if not grid.is_1d and grid.parts * grid.slices > 1
            ),
            Description("windows", 4),
            Description("in-place"),
            Description("offload", 4),
        ]

    def count(self, strategy: Description) -> Counted:
        """Count what a strategy moves and holds.

        Raises:
            Refused: The model, the machine or the memory does not allow it.
        """
        self._check_model(strategy)
        match strategy.name:
            case "cover":
                counted = self._cover(strategy)
            case "tail" | "grid":
                counted = self._grid(strategy)
            case "offload":
                counted = self._offload(strategy)
            case _:  # the same rows as in the ordinary way
                counted = self.halo
        return replace(counted, strategy=strategy)

    def _check_model(self, strategy: Description) -> None:
        kinds, name = self.model.kinds, strategy.name
        whole = min(WHOLE & kinds, default="")
        if whole and name in ("tail", "cover", "grid", "windows"):
            raise Refused(f"{whole} needs whole rows of whole neighbourhoods, which {strategy} divides")
        if name == "in-place" and kinds != {"gcn"}:
            others = ", ".join(sorted(kinds - {"gcn"}))
            raise Refused(f"a stack in place is of GCN (dgcl.nn.InPlaceGCN), not of {others}")
        if strategy.argument == "machine" and len({device.machine for device in self.topology.devices}) == 1:
            raise Refused("all ranks are on one machine, so there is no network to spare")
        if self.part is None and name in ("tail", "cover", "grid"):
            raise Refused("sizes alone do not say which edges there are; give the graph")

    @cached_property
    def halo(self) -> Counted:
        """The ordinary exchange, of which others are variations."""
        halo, P = Description("halo"), self.world_size
        if isinstance(self.graph, GraphShape):
            shape, scale = self.graph, max(1.0, self.graph.num_vertices / _DRAWN)
            drawn = synthetic_relation(shape, P, seed=self.seed, scale=1 / scale)
            expand = Relation(P, drawn.source, drawn.dests, np.ceil(drawn.count * scale).astype(np.int64))
            owned, edges = (np.full(P, -(-total // P)) for total in (shape.num_vertices, shape.num_edges))
            return Counted(halo, self.topology, expand, None, owned, edges)
        graph, part = self._whole()
        edges = np.bincount(part, graph.in_degrees(), P).astype(np.int64)
        owned, expand = np.bincount(part, minlength=P), halo_classes(graph, part, P).relation
        return Counted(halo, self.topology, expand, None, owned, edges, edge_order=graph.edge_ids is not None)

    def _cover(self, strategy: Description) -> Counted:
        placement = EdgePlacement("cover", per_machine=strategy.argument == "machine")
        exchanges, excess = placement.exchanges(*self._whole(), self.topology)
        expand, fold = exchanges.expand.relation, exchanges.fold.relation
        return replace(self.halo, expand=expand, fold=fold, edges=exchanges.edges, excess=excess)

    def _grid(self, strategy: Description) -> Counted:
        grid = as_grid(strategy.argument or (1, self.world_size, 1), self.world_size)  # the latter is "tail"
        needs = find_needs(*self._whole(), grid)
        expand, fold = (demand(needs).classes().relation for demand in (expand_demand, fold_demand))
        return replace(
            self.halo, expand=expand, fold=fold, edges=needs.edges_of_ranks, slices=grid.slices,
            edge_order=self.halo.edge_order or grid.depth > 1,
        )  # fmt: skip

    def _offload(self, strategy: Description) -> Counted:
        """Rows of device memory where no chunk is cut, at most: an estimate.

        A rank's edges are divided at random, so the more chunks read a row the more edges lead from it: parts of a
        graph with communities have chunks that read fewer. But one chunk has all edges of the vertex that has most.
        """
        halo, chunks = self.halo, strategy.argument
        owned, edges = (-(-int(each.max()) // chunks) for each in (halo.owned, halo.edges))
        received, sent, *_ = halo.travelling
        reads = max(int((halo.owned + received).max()), 1)
        sources = int(reads * (1 - (1 - 1 / chunks) ** (edges * chunks / reads)))
        travel = min(int(np.maximum(received, sent).max()), sources)
        tables = (
            8 * (chunks * sources + halo.owned) + OWN_BYTES * halo.owned + 2 * MOVED_BYTES * (received + sent)
        )
        sources, travel, edges = map(max, (sources, travel, edges), self._hub)
        rows = [
            DeviceRows(sources, sources, sources, owned, travel, edges, travel, each)
            for each in tables.tolist()
        ]
        return replace(halo, chunks=rows)

    @cached_property
    def _hub(self) -> tuple[int, int, int]:
        """Of the vertex with most in-edges: its sources, those of other ranks, and the edges."""
        if self.part is None:
            return 0, 0, 0
        graph, part = self._whole()
        hub = graph.in_degrees().argmax()
        sources = graph.indices[graph.indptr[hub] : graph.indptr[hub + 1]]
        reads = np.unique(sources)
        return len(reads), int((part[reads] != part[hub]).sum()), len(sources)

    def _whole(self) -> tuple[Graph, NDArray[np.int32]]:
        assert isinstance(self.graph, Graph)
        assert self.part is not None
        return self.graph, self.part
