"""The data of :func:`dgcl.dispatch` as one device has them: rows of vertices and edges, by type."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.program.exchange import HALO
from dgcl.rows.space import Ends, Space
from dgcl.rows.sums import state_of
from dgcl.rows.tensor import rows


class View:
    """Spaces of the vertices and edges of one communicator.

    Attributes:
        comm: The communicator.
        vertices: By type; "" where there is one.
        edges: By type; "" where there is one.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        (nodes, _), (edges, edge_ids) = comm.dispatched[1].values()
        several = bool(comm.node_types)
        self.vertices: dict[Any, Space] = {}
        for name, (_, number) in nodes.items():
            own = torch.from_numpy(comm._vertices(name)[0]) if several else comm.owned_ids
            self.vertices[name] = Space(comm, ("vertices", name), own, number)
        whole_ids = comm.edges != "head"
        self.edges: dict[Any, Space] = {}
        ids = torch.as_tensor(np.asarray(edge_ids)).long()
        for kind, (first, number) in edges.items():
            source, target = (kind[0], kind[2]) if several else (next(iter(nodes)),) * 2
            exchange = "__".join(kind) if several else HALO
            numbers = comm.end_ids.get(exchange) or (
                torch.cat([comm.owned_ids, comm.halo_ids]),
                comm.owned_ids,
            )
            ends = Ends(
                None if whole_ids else exchange,
                {"source": self.vertices[source], "target": self.vertices[target]},
                dict(zip(("source", "target"), numbers, strict=True)),
            )
            mine = ids[(ids >= first) & (ids < first + number)] - first
            self.edges[kind] = Space(comm, ("edges", kind), mine, number, ends)

    def of(self, kind: str, store: Any) -> Space:
        """The space of what has a row for each vertex, or edge, of a store."""
        spaces: Mapping[Any, Space] = getattr(self, kind)
        return spaces[store]


def view_of(comm: Any) -> View:
    """The view of a communicator, made once.

    Raises:
        ValueError: Its rows cannot be shown so.
    """
    view = comm.__dict__.get("view")
    if view is None:
        view = View(comm)
        stored = sum(
            next(iter(view.vertices.values())).exchange(sum(len(each.keys) for each in view.edges.values()))
        )
        if stored != comm.num_edges:
            raise ValueError(
                f"typed=True shows each edge once, and this strategy stores {comm.num_edges} edges {stored} times in"
                " all, as a grid of slices does: take another strategy, or dispatch with typed=False"
            )
        comm.view = view
    return view  # type: ignore[no-any-return]


def as_one_device(data: Any, comm: Any, gather_limit: int) -> Any:
    """What ``dispatch`` gave of PyG's data, as one device has it.

    Raises:
        TypeError: It is a graph of DGL.
    """
    if not hasattr(data, "whole_kind") or isinstance(data.stores, dict):
        raise TypeError(
            "typed=True takes PyG's Data and HeteroData so far; dispatch a DGLGraph with typed=False"
        )
    view = view_of(comm)
    state_of(comm).gather_limit = gather_limit
    known = comm.dispatched[0]
    whole = data.whole_kind()
    for store in data.stores:
        key = store._key
        own = whole if key is None else whole[key]
        name = "" if key is None else key
        for field, value in store.items():
            kind = known.get((name, field), "")
            if field == "edge_index":
                own[field] = rows(value, view.of("edges", name), 1, "both")
            elif field == "num_nodes":
                own.num_nodes = view.of("vertices", name).size
            elif kind and isinstance(value, Tensor):
                own[field] = rows(value, view.of(kind, name))
            else:
                own[field] = value
    return whole


def share_generators(comm: Any) -> None:
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
