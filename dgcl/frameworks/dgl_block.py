"""A DGL block whose degrees are those of the whole graph, so that unmodified ``dgl.nn`` layers are exact.

Sources are ``[owned | halo]`` rows, destinations the owned ones, as ``dgl.to_block`` makes it. A rank has every in-edge
of its vertices, so sums, maxima and edge softmaxes are right; but only some out-edges of a source, by whose number
``GraphConv(norm="both")`` divides: an ordinary block would count them wrong.
Called by `dgcl/frameworks/__init__`, for ``comm.local_graph("dgl")``, and `dgcl/distributed/rank_graph`. Free to change
while layers give the rows of the whole graph, copies keep its degrees, and changes of its edges are refused
(`tests/dgcl/frameworks/test_dgl_block.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import dgl
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgcl.errors import CommError

if TYPE_CHECKING:
    from dgcl.relation.local_graph import LocalGraph


class LocalBlock(DGLBlock):  # type: ignore[misc]  # DGL has no type stubs
    """One rank's in-edges as a DGL block that answers ``in_degrees`` and ``out_degrees`` for the whole graph.

    Edge k of the block is edge k of the rank's :class:`~dgcl.relation.local_graph.LocalGraph`, so what
    ``comm.dispatch_edges`` returns can be used as edge weights directly. As in ``dgl.to_block``, global
    vertex ids are in ``srcdata[dgl.NID]`` and ``dstdata[dgl.NID]``, and global edge ids in
    ``edata[dgl.EID]``.

    The edges are fixed: a rank that changed its own would no longer know the degrees of the whole graph.
    """

    # Plain attributes, because DGL's own copies (local_var, clone, to, int, formats, pickle) carry the
    # instance dictionary along, whereas a layer could pop or overwrite what is kept in ``srcdata``.
    _whole_in_degrees: Tensor  # (num_dst_nodes,), on the block's device, in its id type
    _whole_out_degrees: Tensor  # (num_src_nodes,)

    def in_degrees(self, v: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """In-degrees in the whole graph of destination vertices ``v`` (default: all), as in DGLGraph."""
        self.get_etype_id(etype)
        return self._degrees_at(self._whole_in_degrees, v)

    def out_degrees(self, u: Any = dgl.base.ALL, etype: Any = None) -> Any:
        """Out-degrees in the whole graph of source vertices ``u`` (default: all), as in DGLGraph."""
        self.get_etype_id(etype)
        return self._degrees_at(self._whole_out_degrees, u)

    def _degrees_at(self, degrees: Tensor, vertices: Any) -> Any:
        """Those of some vertices, an integer for one; of all a copy, which callers may write to."""
        if dgl.base.is_all(vertices):
            return degrees.clone()
        those = degrees.index_select(0, dgl.utils.prepare_tensor(self, vertices, "vertices"))
        return those.item() if isinstance(vertices, int) else those

    def to(self, device: Any, **kwargs: Any) -> LocalBlock:
        """A copy on ``device``, as ``DGLGraph.to``."""
        return self._with_matching_degrees(super().to(device, **kwargs))

    def astype(self, idtype: Any) -> LocalBlock:
        """A copy with another id type, as ``DGLGraph.astype``; ``int()`` and ``long()`` come here too."""
        return self._with_matching_degrees(super().astype(idtype))

    def __getitem__(self, key: Any) -> LocalBlock:
        return self._with_matching_degrees(
            super().__getitem__(key)
        )  # DGL builds it by our class, without degrees

    def _with_matching_degrees(self, block: LocalBlock) -> LocalBlock:
        block._whole_in_degrees = self._whole_in_degrees.to(block.device, block.idtype)
        block._whole_out_degrees = self._whole_out_degrees.to(block.device, block.idtype)
        return block

    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Any = None, etype: Any = None
    ) -> None:
        """As DGLGraph.update_all, and the gradients of maxima and minima are zeros where the block has no edge.

        DGL's backward adds the gradient of a vertex without in-edges to the row of source 0, or fails, where no
        vertex has any.
        """
        super().update_all(message_func, reduce_func, self.applied(reduce_func, apply_node_func), etype)

    def applied(self, reduce_func: Any, apply_node_func: Any) -> Any:
        """What DGL applies to rows that it has reduced, in the place of ``apply_node_func``."""
        if self.num_edges() or getattr(reduce_func, "name", None) not in ("max", "min"):
            return apply_node_func
        inputs = [frame[key] for frame in (self.srcdata, self.edata, self.dstdata) for key in frame]
        # No element of the inputs: the gradient reaches them, and exchanges before them, as zeros.
        worst = float("-inf" if reduce_func.name == "max" else "inf")
        nothing = sum(t[:0].sum() for t in inputs if t.requires_grad)

        def apply(nodes: Any) -> Any:
            name = reduce_func.out_field
            # Infinite, as where others have edges; DGL makes zeros of what is infinite afterwards.
            nodes.data[name] = torch.full_like(nodes.data[name], worst) + nothing
            return {name: nodes.data[name]} if apply_node_func is None else apply_node_func(nodes)

        return apply

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """As DGLGraph.local_scope, in which layers run; errors in a layer come with a note on what a block is."""
        try:
            with super().local_scope():
                yield
        except (AssertionError, RuntimeError, dgl.DGLError) as error:
            if not isinstance(error, CommError) and not hasattr(error, "__notes__"):  # a scope within a scope
                error.add_note(
                    f"this graph is a block of one hop: its sources are {self.num_src_nodes()} rows [owned | halo],"
                    f" which dgcl.graph_allgather returns, its destinations this rank's {self.num_dst_nodes()} owned"
                    " rows. A layer of several hops, or one that takes no block, runs on the graph of dgcl.dispatch,"
                    " which exchanges at each hop"
                )
            raise

    def _refuse_change(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise dgl.DGLError(
            "a rank's block cannot gain or lose vertices or edges: its degrees are those of the whole graph,"
            " and its rows are those of the exchange. Change the graph before dgcl.build_comm_info (for self"
            " loops: dgl.add_self_loop), or take edges out of a layer with edge weights of zero."
        )

    add_edges = add_nodes = remove_edges = remove_nodes = _refuse_change


def build(local: LocalGraph, *, device: torch.device | str | None) -> LocalBlock:
    """The DGL block of one rank; see :class:`LocalBlock`.

    Args:
        local: the rank's edges, from ``comm.local``.
        device: where the block lives; None means the CPU.
    """
    in_degrees = local.in_degrees[: local.num_owned]
    block = block_of(local.indptr, local.indices, local.num_local, in_degrees, local.out_degrees)
    with torch.device("cpu"):
        block.srcdata[dgl.NID] = torch.tensor(local.local_ids)
        block.dstdata[dgl.NID] = torch.tensor(local.owned_ids)
        block.edata[dgl.EID] = torch.tensor(local.edge_ids)
    return block.to(torch.device(device or "cpu"))


def block_of(indptr: Any, indices: Any, num_sources: int, in_degrees: Any, out_degrees: Any) -> LocalBlock:
    """The block of in-edges as CSR, and degrees in the whole graph of heads and sources; on the CPU."""
    # Edge ids are given, though they are 0..E-1: DGL 1.1's float32 CPU kernels refuse edge features on a CSC
    # that leaves them out.
    with torch.device("cpu"):  # DGL makes tensors where torch's default device is
        columns = torch.tensor(indptr), torch.tensor(indices).long(), torch.arange(len(indices))
        plain = dgl.create_block(("csc", columns), num_src_nodes=num_sources, num_dst_nodes=len(indptr) - 1)
        block = LocalBlock.__new__(LocalBlock)
        block.__dict__.update(plain.__dict__)  # as DGLGraph.__copy__ does, for another class
        block._whole_in_degrees = torch.tensor(in_degrees)
        block._whole_out_degrees = torch.tensor(out_degrees)
    return block
