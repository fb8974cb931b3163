"""Converts edges in other forms (targets in row 0, two id vectors, a dict, ``adj_t``) to PyG's form and back.

PyG's form, the only one that ``dispatch`` divides, is a ``Data`` whose ``edge_index`` has sources in row 0 and targets,
which sum, in row 1. The user's form reaches all ranks as an attribute of that ``Data`` (``_FORM``).
Called by `dispatch`. Free to change while data come back in the type and names that the user gave, scripts that read
them sum at the right ends, and options that do not fit raise ValueError (`tests/dgcl/rows/test_edge_names.py`;
``adj_t``: `tests/dgcl/rows/test_own_ranks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch_geometric.data import Data

#: The attribute of ``Data`` that tells the form on all ranks.
_FORM = "dgcl_form"
#: Where there is one of these, it has a row for each vertex.
_VERTICES = "positions", "pos", "x", "z"


def in_pyg_form(data: Any, flow: str, ends: Mapping[str, str] | None) -> Any:
    """The user's data as ``Data`` with an ``edge_index`` from sources to targets; data that is so already as it is.

    Raises:
        ValueError: ``flow`` or ``ends`` does not fit the data.
    """
    flows = "source_to_target", "target_to_source"
    if flow not in flows:
        raise ValueError(f"flow must be {flows[0]!r} or {flows[1]!r}, as PyG has it (got {flow!r})")
    store = getattr(data, "_store", {})
    if "adj_t" in store and "edge_index" not in store and isinstance(store["adj_t"], torch.Tensor):
        return _from_matrix(data)
    if not isinstance(data, dict) and flow == flows[0] and ends is None:
        return data
    name_of = {end: name for name, end in (ends or {}).items()}
    if ends is not None and (name_of.keys() != {"source", "target"} or len(ends) != 2):
        raise ValueError(
            f"ends must name the ids at sources and those at targets, as ends={{'idx_j': 'source', 'idx_i': 'target'}}"
            f" (got {dict(ends)})"
        )
    if not isinstance(data, dict) and not hasattr(data, "edge_index"):
        raise ValueError(
            f"flow and ends are of PyG's Data or a dict of tensors with one set of edges (got {type(data).__name__})"
        )
    out: Data
    names: dict[str, str] = {}
    if isinstance(data, dict):
        out, names = _from_dict(data)
    else:
        out = copy(data)
    if lacking := {*(ends or ("edge_index",))} - {*names.values(), *out.keys()}:
        raise ValueError(f"data has no {' and no '.join(sorted(lacking))}, which the edges are to be")
    if ends is not None:
        inside = {old: new for new, old in names.items()}
        pair = (name_of[end] for end in ("source", "target"))
        out.edge_index = torch.stack([out._store.pop(inside.get(name, name)) for name in pair])
    elif flow == flows[1]:
        out.edge_index = out.edge_index.flip(0)
    out[_FORM] = isinstance(data, dict), names, flow == flows[1], name_of
    return out


def _from_matrix(data: Any) -> Data:
    """Data with PyG's transposed sparse matrix, as ``ToSparseTensor`` makes it, as edges."""
    out: Data = copy(data)
    matrix = out._store.pop("adj_t").to_sparse_coo()
    ends, values = matrix._indices().flip(0), matrix._values()
    if values.dim() != 1 or not (values == 1).all() or (ends[0] == ends[1]).any():
        raise ValueError(
            "data.adj_t must hold ones and no self loops, which layers take otherwise in a matrix: dispatch edge_index,"
            " and values as edge_weight"
        )
    out.edge_index, out.num_nodes = ends, matrix.shape[0]
    out[_FORM] = "adj_t"
    return out


def _from_dict(data: dict[str, Any]) -> tuple[Data, dict[str, str]]:
    """A dict as ``Data``, which has no attributes that begin with "_"; and its own names by those there."""
    from torch_geometric.data import Data

    names = {name.lstrip("_"): name for name in data}
    rows = next((data[names[name]] for name in _VERTICES if name in names), None)
    if len(names) < len(data) or rows is None:
        raise ValueError(
            f"a dict must have one of {', '.join(_VERTICES)}, by which vertices are counted, and names that differ by"
            f" more than a leading underscore (got {', '.join(data)}): make it a torch_geometric.data.Data"
        )
    return Data(**{new: data[old] for new, old in names.items()}, num_nodes=len(rows)), names


def in_own_form(data: Any) -> Any:
    """What ``dispatch`` made of ``Data``, in the form in which the user's data was."""
    if _FORM not in getattr(data, "_store", ()):
        return data
    form = data._store.pop(_FORM)
    if form == "adj_t":  # layers take edges in its place
        data.adj_t = data._store.pop("edge_index")
        return data
    is_dict, names, flipped, name_of = form
    if name_of:
        store, sources_and_targets = data._store, data._store.pop("edge_index")
        for end, ids in zip(("source", "target"), sources_and_targets.unbind(0), strict=True):
            own = name_of[end]
            store[own.lstrip("_") if is_dict else own] = ids
    elif flipped:
        data.edge_index = data.edge_index.flip(0)
    if not is_dict:
        return data
    return {names.get(name, name): value for name, value in data.to_dict().items() if name in names}
