"""Gives a PyG layer a subclass whose forward runs on this rank's rows and returns rows of all vertices.

The forward replaces each argument (rows, edges) by this rank's tensors; ``message_passing`` exchanges rows inside, and
PyG's own code computes. A call that cannot be divided so raises ``Closed``: edges that the script made, several
results, dropout in a layer that ``attention`` does not know. It then runs PyG's own code on the rows themselves
(:mod:`dgcl.rows`): exact, slower.
Called by `check` and `distribute`. Free to change while each layer of PyG, and each option of its constructor, gives
the outputs and gradients of one device (`tests/dgcl/rows/test_layers.py`, `tests/dgcl/rows/test_variants.py`), and a
distributed model that was pickled loads without ranks (`tests/dgcl/rows/test_own_ranks.py`).
"""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from dgcl.aggregation.edge_sets import EdgeSet, edge_set_of, edges_of, remember
from dgcl.distributed.attention import Closed, drops, function_of
from dgcl.distributed.message_passing import message_passing
from dgcl.distributed.summing_layers import is_sum
from dgcl.program.exchange import HALO
from dgcl.ranks.context import context
from dgcl.rows.row_sums import State, fitting, state_of
from dgcl.rows.space import Space
from dgcl.rows.tensor import PAIRS, OneDevice, Rows, mapped, plain, rows, tensors_in, unseen

#: Layers whose messages read rows of vertices and edges at each call of propagate, over the edges that they are given.
#: Others run on the rows themselves: exact, too, at the price of bookkeeping.
LAYERS = frozenset(
    str.split(
        """AGNNConv APPNP ARMAConv AntiSymmetricConv CGConv ChebConv ClusterGCNConv EdgeConv FAConv FeaStConv FiLMConv
    GATConv GATv2Conv GCN2Conv GCNConv GENConv GINConv GINEConv GMMConv GatedGraphConv GeneralConv GraphConv
    LEConv LGConv MFConv MixHopConv NNConv PDNConv PNAConv PointNetConv PointGNNConv PPFConv ResGatedGraphConv
    RGATConv RGCNConv SAGEConv SGConv SSGConv TAGConv TransformerConv WLConvContinuous SimpleConv"""
    )
)
_AGGREGATIONS = frozenset(
    str.split(
        """SumAggregation MeanAggregation MaxAggregation MinAggregation SoftmaxAggregation PowerMeanAggregation
    VarAggregation StdAggregation DegreeScalerAggregation MulAggregation"""
    )
)
#: Modules of torch that work row by row, which a layer may have inside.
_ROW_BY_ROW = {
    getattr(torch.nn, name)
    for name in str.split(
        """Linear Identity Sequential ModuleList ModuleDict ParameterList ParameterDict LayerNorm Embedding GRUCell ReLU
    LeakyReLU PReLU ELU SiLU GELU Sigmoid Tanh Softplus"""
    )
}


class Adapter:
    """Comes before the class of a distributed layer."""

    dgcl_base: type

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, on this rank's rows where they can be opened."""
        layer: Any = self
        for each in tensors_in((*args, *kwargs.values())):
            if isinstance(each, OneDevice):
                break
            if edge_set_of(each) is not None:
                raise ValueError(
                    "edge_index has this rank's numbers: give a distributed model what dgcl.dispatch gave, or"
                    " dgcl.as_rows(edge_index, comm)"
                )
        else:
            return self._as_it_is(*args, **kwargs)
        try:
            with unseen():
                own_args, own_kwargs, space, layer.dgcl_edges = _opened(layer, args, kwargs)
            layer.dgcl_expanded = {}
            out = super().forward(*own_args, **own_kwargs)  # type: ignore[misc]
        except Closed:
            return self._as_it_is(*args, **kwargs)
        finally:
            vars(layer).pop("dgcl_edges", None)
            vars(layer).pop("dgcl_expanded", None)
        with unseen():
            return rows(out, space, layer.node_dim % out.dim())

    def _as_it_is(self, *args: Any, **kwargs: Any) -> Any:
        """PyG's own code, on the rows themselves."""
        kind, comm = type(self), context.communicator
        state = State() if comm is None else state_of(comm)  # None where a loaded model has no ranks
        self.__class__ = kind.dgcl_base  # type: ignore[assignment]
        before, state.in_layer = state.in_layer, drops(self)
        try:
            return self.forward(*args, **kwargs)
        finally:
            self.__class__, state.in_layer = kind, before

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (type(self).dgcl_base,), self.__getstate__()  # type: ignore[attr-defined]


def _opened(layer: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any], Space, EdgeSet]:
    """Arguments of this rank, the space of the result, and the set of the edges.

    Raises:
        Closed: They cannot be told.
    """
    base = type(layer).dgcl_base
    if (layer._forward_hooks and layer.explain) or (drops(layer) and function_of(base) is None):
        raise Closed
    bound = _signature(base).bind(*args, **kwargs)
    edge_index = bound.arguments.get("edge_index")
    if (
        type(edge_index) is not Rows
        or edge_index._ends != "both"
        or kwargs.get("return_attention_weights") is not None
    ):
        raise Closed
    if bound.arguments.get("size") is not None:
        del bound.arguments["size"]
    edges = edge_index._space
    numbers = edges.ends
    if numbers is None or layer.flow != "source_to_target":
        raise Closed
    comm = edges.comm
    if comm.sums_elsewhere and (edges.root[0] != "edges" or comm.node_types or not is_sum(base)):
        raise Closed
    if comm.grid.slices > 1 and bound.arguments.get("edge_weight") is not None:
        raise Closed
    known = edge_set_of(edge_index._local)
    if known is None:
        known = edges_of(comm, numbers.exchange or HALO, edges.root[0] == "edges")
        remember(edge_index._local, known)
    _take_own(bound.arguments, edges, numbers.spaces)
    return bound.args, bound.kwargs, numbers.spaces["target"], known


def _take_own(arguments: dict[str, Any], edges: Space, spaces: dict[str, Space]) -> None:
    """Put this rank's part of each argument in its place.

    Raises:
        Closed: It cannot be told.
    """
    if next(iter(arguments.values())) is None:  # rows of a table by their number
        raise Closed
    for name, value in arguments.items():
        if name == "edge_index":
            arguments[name] = value._local
        elif name.startswith("edge_") or name == "pseudo":
            arguments[name] = mapped(functools.partial(_at, space=edges), value)
        elif isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], Tensor):
            both = zip(value, spaces.values(), strict=True)
            arguments[name] = tuple(None if each is None else _at(each, space) for each, space in both)
        elif isinstance(value, Tensor):
            if spaces["source"] is not spaces["target"]:
                raise Closed
            arguments[name] = _at(value, spaces["source"])
        elif isinstance(value, (tuple, list, dict)):
            arguments[name] = mapped(functools.partial(_at, space=spaces["source"]), value)


def _at(value: Any, space: Space) -> Tensor:
    """This rank's part of an argument with a row for each vertex, or edge; what has none is as it is.

    Raises:
        Closed: It has rows of another space.
    """
    is_rows = type(value) is Rows
    if is_rows and (value._axis != 0 or value._ends in PAIRS or not value._space.same(space)):
        raise Closed
    if is_rows or (value.dim() and value.shape[0] == space.size):
        return fitting(value, space, -value.dim())  # type: ignore[no-any-return]
    return plain(value)  # type: ignore[no-any-return]


@functools.cache
def _signature(layer: type) -> inspect.Signature:
    names = list(inspect.signature(layer.forward).parameters.values())[1:]  # type: ignore[attr-defined]
    return inspect.Signature(names)


def adaptable(module: Module) -> bool:
    """Whether a module is a layer of PyG whose inside works row by row but for its exchange."""
    kind = type(module)
    if kind.__name__ not in LAYERS or not kind.__module__.startswith("torch_geometric.nn.conv"):
        return False
    if getattr(module, "normalization", "") is None:  # ChebConv takes a maximum of its weights
        return False
    for each in module.modules():
        simple = (
            each is module
            or type(each) in _ROW_BY_ROW
            or type(each).__module__.startswith("torch_geometric.nn.dense.linear")
            or type(each).__name__ in _AGGREGATIONS
        )
        # A function that a layer was given, or a hook within it, may look at all rows.
        if (
            not simple
            or any(map(callable, vars(each).values()))
            or (each is not module and each._forward_hooks)
        ):
            return False
    return True


def adapt(module: Any) -> None:
    """Give a layer that :func:`adaptable` takes its exchange and its adapter."""
    if not isinstance(module, Adapter):
        module.__class__ = _adapted(module.__class__)


@functools.cache
def _adapted(base: Any) -> Any:
    return type(base.__name__, (Adapter, message_passing(base)), {"__doc__": base.__doc__})


def _new(base: Any) -> Any:
    return object.__new__(_adapted(base))
