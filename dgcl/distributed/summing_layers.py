"""Lets PyG layers that only sum source rows, perhaps weighted, use the communicator's sums over edges.

Such are the classes that have ``message_and_aggregate`` beside ``message`` (:func:`is_sum`). So they run with
strategies in which other ranks than the target's owner sum an edge; other layers then run on the rows themselves
(``adapters``). Our ``spmm`` takes this rank's edges and weights in place of a sparse matrix. Edges must be those of
``dgcl.dispatch``, unchanged.
Called by `adapters`, `degrees` and `message_passing`. Free to change while GCN, GIN and ARMAConv give results of one
device with each strategy (`tests/dgcl/rows/test_layers.py`, ``STRATEGIES``).
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch_geometric import utils

from dgcl.aggregation.edge_sets import EdgeSet, edge_set_of
from dgcl.ranks.tensors import beside_the_graph

_OF_SUMS = {"message", "message_and_aggregate"}
_HOOKS = _OF_SUMS | {"aggregate", "update"}


class _Adjacency(NamedTuple):
    """What takes the place of a sparse matrix: this rank's edges, and their weights."""

    edges: EdgeSet
    weight: Tensor | None
    dim: int


def spmm(src: Any, other: Tensor, reduce: str = "sum") -> Tensor:
    """PyG's ``spmm``; with this rank's edges in the place of a matrix the sums over all ranks. Collective then."""
    if not isinstance(src, _Adjacency):
        return utils.spmm(src, other, reduce)
    edges, weight, dim = src
    kind = "sum" if reduce == "add" else reduce
    return edges.aggregate(other.movedim(dim, 0), kind, weight).movedim(0, dim)


def is_sum(base: type) -> bool:
    """Whether a ``MessagePassing`` does by its own functions no more than the aggregator."""
    defined = [hooks for kind in base.__mro__ if (hooks := vars(kind).keys() & _HOOKS)]
    reads = inspect.signature(base.message).parameters.keys() - {"self", "edge_weight"}  # type: ignore[attr-defined]
    return defined == [_OF_SUMS, _HOOKS] and [name[-2:] for name in reads] == ["_j"]


@beside_the_graph
def sum_messages(layer: Any, edge_index: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """What ``propagate`` of such a layer gives. Collective.

    Raises:
        ValueError: The edges are not all of this rank, as they came.
    """
    edges = edge_set_of(edge_index)
    if edges is None:
        raise ValueError(
            f"edge_index must be that of dgcl.dispatch, as it came, for {layer.dgcl_base.__name__} where the strategy"
            " is not halo (got other edges): give edges weights, change the graph before it is dispatched, or build the"
            " communicator with strategy='halo'"
        )
    reads = inspect.signature(layer.message_and_aggregate).parameters.keys() & arguments.keys()
    adjacency = _Adjacency(edges, arguments.get("edge_weight"), layer.node_dim)
    return layer.message_and_aggregate(adjacency, **{name: arguments[name] for name in reads})
