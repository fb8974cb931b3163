"""A rank's graph for DGL models of one device: it looks homogeneous, and rows are exchanged as messages read them.

Its vertices are those that the rank owns, its edges all that lead to them. ``update_all`` and ``apply_edges`` run on
the rank's block (:mod:`dgcl.frameworks.dgl_block`); what a message reads at its source comes from its owner then. So
layers of several hops, functions of one's own and :func:`dgl.nn.functional.edge_softmax` work as they are.
"""

from __future__ import annotations

import copy
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import dgl
import numpy as np
import torch
from dgl.function.message import BinaryMessageFunction, CopyMessageFunction, MessageFunction
from dgl.udf import EdgeBatch
from numpy.typing import NDArray
from torch import Tensor

from dgcl.frameworks.dgl_block import LocalBlock
from dgcl.frameworks.edge_sets import edges_of

_SIDES = {0: "u", 1: "v", 2: "e"}  # DGL's codes


class RankGraph:
    """One rank's vertices and their in-edges, as DGL's layers and functions take a homogeneous graph.

        >>> g = dgcl.dispatch(g)                         # a RankGraph with this rank's ndata and edata
        >>> out = model(g, g.ndata["feat"])              # collective

    Attributes:
        comm: The communicator.
        ndata, edata: Rows of the owned vertices, and of the edges in the order of ``comm.dispatch_edges``.
    """

    is_block = is_multigraph = False
    is_homogeneous, idtype = True, torch.int64
    ntypes, etypes, canonical_etypes, batch_size = ["_N"], ["_E"], [("_N", "_E", "_N")], 1

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._block: Any = None
        self.device = comm.device
        if comm.edges == "head":
            self._block = comm.local_graph("dgl", device=self.device)
        self.ndata = _Frame(comm.num_owned, f"owned rows of rank {comm.rank}")
        self.edata = _Frame(self.num_edges(), f"edges of rank {comm.rank}")

    @property
    def block(self) -> LocalBlock:
        """The edges, from [owned | halo] rows to owned ones."""
        self.comm.require_neighbourhoods("a message that is no row of a source times a weight")
        return self._block

    srcdata = dstdata = property(lambda self: self.ndata)

    @property
    def _graph(self) -> Any:  # DGL's edge softmax asks for it
        if sys._getframe(1).f_locals.get("norm_by") == "src":
            raise ValueError(
                "edge_softmax(norm_by='src') needs all out-edges of a vertex, which are on the ranks of their heads:"
                " dispatch the graph turned round, and take norm_by='dst'"
            )
        return self.block._graph

    def num_nodes(self, *_: Any) -> int:
        """How many vertices this rank owns."""
        return int(self.comm.num_owned)

    number_of_nodes = num_src_nodes = num_dst_nodes = number_of_src_nodes = number_of_dst_nodes = num_nodes

    def num_edges(self, *_: Any) -> int:
        """How many edges lead to them."""
        return int(self.comm.local.num_edges)

    number_of_edges = num_edges

    def in_degrees(self, v: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """In the whole graph."""
        return self._of(self.comm.local.in_degrees, v)

    def out_degrees(self, u: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """In the whole graph."""
        return self._of(self.comm.local.out_degrees, u)

    def _of(self, degrees: NDArray[np.int64], vertices: Any) -> Tensor:
        slices = self.comm.grid.slices
        of_owned = torch.tensor(degrees[: self.num_nodes() * slices : slices], device=self.device)
        return of_owned if dgl.base.is_all(vertices) else of_owned[vertices]

    def to(self, device: Any, **kwargs: Any) -> RankGraph:
        """A copy with its edges and rows on ``device``."""
        moved = self.local_var()
        moved.device = torch.device(device)
        moved._block = None if self._block is None else self._block.to(device, **kwargs)
        for frame in (moved.ndata, moved.edata):
            frame.update({name: rows.to(device, **kwargs) for name, rows in frame.items()})
        return moved

    def local_var(self) -> RankGraph:
        """A copy whose frames may change."""
        copied = copy.copy(self)
        copied.ndata, copied.edata = copy.copy(self.ndata), copy.copy(self.edata)
        return copied

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Undo what is done to the frames inside."""
        before = self.ndata, self.edata
        self.ndata, self.edata = copy.copy(self.ndata), copy.copy(self.edata)
        try:
            yield
        finally:
            self.ndata, self.edata = before

    @torch.compiler.disable
    def apply_edges(self, func: Any, edges: Any = dgl.base.ALL, etype: Any = None) -> None:
        """As DGLGraph.apply_edges, of all edges. Collective."""
        if not dgl.base.is_all(edges):
            raise dgl.DGLError("edges must be all edges on a rank's graph; give others a weight of zero")
        if not isinstance(func, MessageFunction):
            self.edata.update(func(self._batch()))
            return
        with self._lent(func):
            self.block.apply_edges(func)
            self.edata[func.out_field] = self.block.edata[func.out_field]

    @torch.compiler.disable
    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Any = None, etype: Any = None
    ) -> None:
        """As DGLGraph.update_all. Collective."""
        if apply_node_func is None and self.comm.sums_elsewhere and self._sums(message_func, reduce_func):
            return
        messages = None
        if not isinstance(message_func, MessageFunction):
            messages = message_func(self._batch())
        with self._lent(message_func):
            if messages is not None:
                self.block.edata.update(messages)
                name = getattr(reduce_func, "msg_field", None)
                message_func = (
                    dgl.function.copy_e(name, name)
                    if name
                    else lambda edges: {n: edges.data[n] for n in messages}
                )
            self.block.dstdata.update(self.ndata)
            before = dict(self.block.dstdata)
            self.block.update_all(message_func, reduce_func, apply_node_func)
            self.ndata.update(
                {name: rows for name, rows in self.block.dstdata.items() if before.get(name) is not rows}
            )

    def _sums(self, message: Any, reduce: Any) -> bool:
        """Let the communicator's aggregator sum rows of sources, as they are or times a weight; else return False."""
        name, kind = (getattr(each, "name", "") for each in (message, reduce))
        if name not in ("copy_u", "u_mul_e") or kind not in ("sum", "mean", "max", "min"):
            return False
        field, weight = getattr(message, "in_field", ""), None
        if name == "u_mul_e":
            field, weight = message.lhs_field, self.edata[message.rhs_field].flatten()
        self.ndata[reduce.out_field] = edges_of(self.comm).aggregate(self.ndata[field], kind, weight)
        return True

    @contextmanager
    def _lent(self, function: Any) -> Iterator[None]:
        """Let the block have what a function of DGL's reads: rows of sources are exchanged."""
        fields = []
        if isinstance(function, BinaryMessageFunction):
            fields = [(function.lhs, function.lhs_field), (function.rhs, function.rhs_field)]
        elif isinstance(function, CopyMessageFunction):
            fields = [(function.target, function.in_field)]
        with self.block.local_scope():
            for side, name in fields:
                match _SIDES.get(side, side):
                    case "u":
                        self.block.srcdata[name] = self.comm.expand(self.ndata[name])
                    case "v":
                        self.block.dstdata[name] = self.ndata[name]
                    case "e":
                        self.block.edata[name] = self.edata[name]
            yield

    def _batch(self) -> EdgeBatch:
        """All edges, for a function of the user's; rows are exchanged when it reads them."""
        sources, heads = self.block.edges()
        return EdgeBatch(
            self.block,
            torch.arange(self.num_edges(), dtype=self.idtype, device=self.device),
            self.canonical_etypes[0],
            _AtEdges(lambda name: self.comm.expand(self.ndata[name]), sources),
            self.edata,
            _AtEdges(self.ndata.__getitem__, heads),
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a rank's graph has no {name!r}: it has this rank's vertices and in-edges, local_scope, ndata, edata,"
            " degrees, update_all and apply_edges. Change the graph before dgcl.dispatch (dgl.add_self_loop, ...);"
            " compute what looks at all vertices with dgcl.nn.global_sum"
        )

    def __repr__(self) -> str:
        return f"RankGraph({self.num_nodes()} of {self.comm.num_nodes} vertices, {self.num_edges()} edges)"


class _Frame(UserDict[str, Tensor]):
    """Rows by name, all of one number."""

    def __init__(self, num_rows: int, what: str) -> None:
        super().__init__()
        self._num_rows, self._what = num_rows, what

    def __setitem__(self, name: str, rows: Tensor) -> None:
        if len(rows) != self._num_rows:
            raise dgl.DGLError(f"{name} must hold the {self._num_rows} {self._what} (got {len(rows)})")
        super().__setitem__(name, rows)


class _AtEdges(Mapping[str, Tensor]):
    """Rows of vertices at one end of each edge, by name, when they are asked for; once each."""

    def __init__(self, rows: Callable[[str], Tensor], ends: Tensor) -> None:
        self._rows, self._ends, self._made = rows, ends, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._rows(name).index_select(0, self._ends.long())
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a message must read rows of vertices by name: each is exchanged when it is read")

    def __len__(self) -> int:
        raise TypeError("a message must read rows of vertices by name: each is exchanged when it is read")
