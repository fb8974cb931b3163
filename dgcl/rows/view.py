"""Builds, for one communicator, the spaces of its vertices and edges by type, and ``edge_index`` as rows.

Values of ``edge_index`` are this rank's numbers, which a layer can use as they are; a script that reads them gets ids
of one device. :func:`share_generators` gives all ranks rank 0's random states.
Called by `own_tensors`, `dgcl/distributed/dispatch` and `dgcl/distributed/rank_graph`. Free to change while data and
edges of each type are those that rank 0 gave (`tests/dgcl/frameworks/test_dispatch.py`), and graphs that ranks built
themselves work, too (`tests/dgcl/rows/test_own_ranks.py`).
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dgcl.aggregation.edge_sets import edges_of, remember
from dgcl.communicator import Communicator
from dgcl.planner.array_types import Int64Array
from dgcl.program.exchange import HALO
from dgcl.rows.space import Ends, Space
from dgcl.rows.tensor import Rows, rows


class View:
    """Spaces of the vertices and edges of one communicator.

    Args:
        comm: The communicator.
        nodes, edges: (first, number) of vertices, and of edges, by type; "" where there is one, as by default.
        edge_ids: Of this rank's edges; default in the order of the ranks.

    Attributes:
        comm: The communicator.
        vertices: By type.
        edges: By type.
    """

    def __init__(
        self,
        comm: Communicator,
        nodes: Mapping[Any, tuple[int, int]] | None = None,
        edges: Mapping[Any, tuple[int, int]] | None = None,
        edge_ids: Any = None,
    ) -> None:
        self.comm = comm
        nodes, edges = nodes or {"": (0, comm.num_nodes)}, edges or {"": (0, comm.num_edges)}
        if edge_ids is None:
            with comm.collective("rows"):
                stored = list(comm.control.exchange(comm.local.num_edges))
            edge_ids = np.arange(stored[comm.rank]) + sum(stored[: comm.rank])
        slices = comm.grid.slices  # each has all edges of a block; each edge is shown by one
        self._shown = edge_ids % slices == comm.grid.slice_of(comm.rank)
        self._edge_ids, self._of_nodes, self._of_edges = edge_ids[self._shown], nodes, edges
        several = {"__".join(kind) for kind in edges} <= comm.exchanges.keys()
        self.vertices: dict[Any, Space] = {}
        if several:
            comm.node_types = nodes
        for name, (_, number) in nodes.items():
            own = torch.from_numpy(comm._vertices(name)[0]) if several else comm.owned_ids
            self.vertices[name] = Space(comm, ("vertices", name), own, number)
        ids = torch.from_numpy(self._edge_ids.astype(np.int64))
        self.edges: dict[Any, Space] = {}
        self._ends: dict[Any, Rows] = {}
        for kind, (first, number) in edges.items():
            source, target = _types_of(kind)
            exchange = "__".join(kind) if several else HALO
            sources, targets = torch.cat([comm.owned_ids, comm.halo_ids]), comm.owned_ids
            if several:
                sources = torch.from_numpy(comm.layouts[exchange].local_ids)
                targets = torch.from_numpy(comm._vertices(target)[0])
                comm.end_ids = {**comm.end_ids, exchange: (sources, targets)}
            ends = Ends(
                None if comm.edges != "head" else exchange,
                {"source": self.vertices[source], "target": self.vertices[target]},
                {"source": sources, "target": targets},
            )
            mine = ids[(ids >= first) & (ids < first + number)] - first
            self.edges[kind] = Space(comm, ("edges", kind), mine, number, ends)

    def edge_index(self, kind: Any = "") -> Rows:
        """``(2, E)``: ends of the edges of a type."""
        if kind not in self._ends:
            space, comm = self.edges[kind], self.comm
            ends: Any = space.ends
            if ends.exchange == HALO:
                local = comm.local
                own = np.stack([local.indices, local.heads]).astype(np.int64)
            else:
                own = self._whole_ends(kind)
            if ends.exchange not in (None, HALO):
                sources, targets = (ids.numpy() for ids in ends.ids.values())
                order = np.argsort(sources)
                own[0] = order[np.searchsorted(sources, own[0], sorter=order)]
                own[1] = np.searchsorted(targets, own[1])
            index = torch.from_numpy(own).to(comm.device)
            self._ends[kind] = rows(remember(index, edges_of(comm, ends.exchange or HALO)), space, 1, "both")
        return self._ends[kind]

    def _whole_ends(self, kind: Any) -> Int64Array:
        """``(2, E)`` ids in the whole graph, within their types, of both ends of the edges that this rank sums."""
        local, (first, number) = self.comm.local, self._of_edges[kind]
        heads = np.concatenate([local.owned_ids, local.partial_ids])[local.heads]
        ends = np.stack([local.local_ids[local.indices], heads])[:, self._shown] // self.comm.grid.slices
        mine = (self._edge_ids >= first) & (self._edge_ids < first + number)
        return ends[:, mine] - [self._of_nodes[name][:1] for name in _types_of(kind)]


def _types_of(kind: Any) -> tuple[str, str]:
    """The types of vertices at both ends of edges of a type."""
    return (kind[0], kind[2]) if kind else ("", "")


def view_of(comm: Communicator) -> View:
    """The view of a communicator, made once. Collective then."""
    if "view" not in vars(comm):
        comm.view = View(comm)
    return comm.view  # type: ignore[no-any-return]


def share_generators(comm: Communicator) -> None:
    """Give every rank the states of rank 0's generators: torch's, NumPy's and Python's. Collective.

    Ranks that are threads share them anyway.
    """
    if comm.control.threads_of_ranks > 1 or comm.world_size == 1:
        return
    states = None
    if comm.rank == 0:
        of_numpy = np.random.get_state()  # noqa: NPY002
        states = torch.get_rng_state().numpy(), of_numpy, random.getstate()
    with comm.collective("generators"):
        of_torch, of_numpy, of_python = comm.control.broadcast(states, 0)
    torch.set_rng_state(torch.from_numpy(of_torch.copy()))
    np.random.set_state(of_numpy)  # noqa: NPY002
    random.setstate(of_python)
