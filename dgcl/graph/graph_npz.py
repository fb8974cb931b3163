"""Reads and writes graphs as npz files: CSR of out-neighbours, features, labels, masks. Without pickle.

It reads scipy's sparse matrices, too. The format is in :func:`dgcl.graph.read_graph`.
Called by users and `graph_files`. Free to change while what is saved is read back, and a wrong array is refused by
name (`tests/dgcl/graph/test_files.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dgcl.graph.build_csr import graph_from_csr, graph_from_edges, is_symmetric
from dgcl.graph.csr import Graph, require_graph
from dgcl.graph.graph_file import GraphFile
from dgcl.graph.id_arrays import any_outside, as_ids, as_num_nodes
from dgcl.graph.sources import graph_from_object
from dgcl.planner.npz import read_npz
from dgcl.topology.checks import check_path, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MASKS = ("train", "val", "test")
SPARSE_FEATURES = ("feat_indptr", "feat_indices", "feat_data", "feat_shape")


def read_npz_graph(path: str | os.PathLike[str], *, edge_ids: bool = True) -> GraphFile:
    """Read the npz graph format; see :func:`dgcl.graph.graph_files.read_graph`."""
    name = os.fspath(path)
    arrays = read_npz(path, None, what="graph")
    try:
        if {"format", "shape"} <= arrays.keys():  # scipy's
            from scipy.sparse import load_npz

            return GraphFile(graph_from_object(load_npz(path), None))
        for key in ("num_nodes", "directed", "indptr", "indices"):
            if key not in arrays:
                raise ValueError(f"array {key!r} is missing ({_what_it_is(arrays)})")
        num_nodes = as_num_nodes(_scalar(arrays.pop("num_nodes"), "num_nodes"))
        directed = bool(_scalar(arrays.pop("directed"), "directed"))
        graph = graph_from_csr(
            arrays.pop("indptr"), arrays.pop("indices"), num_nodes, name="the graph", edge_ids=edge_ids
        )
        if not directed:
            _check_both_directions(graph)
        features = _features(arrays, num_nodes)
        labels = _labels(arrays, num_nodes)
        masks = {
            mask: _mask(arrays.pop(f"{mask}_mask"), f"{mask}_mask", num_nodes)
            for mask in MASKS
            if f"{mask}_mask" in arrays
        }
    except (KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
    return GraphFile(graph, features, labels, masks, extra=arrays)


def save_graph(
    path: str | os.PathLike[str],
    graph: Graph,
    *,
    features: Any = None,
    labels: Any = None,
    masks: Mapping[str, Any] | None = None,
) -> None:
    """Write an npz file that :func:`dgcl.graph.read_graph` reads.

    Edges are stored by source, and edges of one source in the graph's edge order: that is what edge ids count
    when the file is read.

    Args:
        path: the file, written at exactly this path.
        graph: N vertices.
        features: (N, F) array or scipy sparse matrix.
        labels: (N,) or (N, ...).
        masks: by name, "train", "val" or "test": (N,) bool.

    Raises:
        ValueError: lengths differ from N, or an unknown mask.
        OSError: the file cannot be written.
    """
    if not (masks is None or isinstance(masks, Mapping)):
        raise TypeError(f"masks must be a dict of arrays by name (got {shown(masks)})")
    require_graph(graph)
    check_path(path, "path")
    src, dst = graph.edges()
    by_source = graph_from_edges(dst, src, graph.num_nodes)  # the in-edges of the reversed graph
    arrays: dict[str, Any] = {
        "num_nodes": np.int64(graph.num_nodes),
        "directed": np.bool_(not is_symmetric(src, dst, graph.num_nodes)),
        "indptr": by_source.indptr,
        "indices": by_source.indices,
    }
    if features is not None:
        if hasattr(features, "tocsr"):
            matrix = features.tocsr()
            values = (matrix.indptr, matrix.indices, matrix.data, np.array(matrix.shape, np.int64))
            arrays.update(zip(SPARSE_FEATURES, values, strict=True))
        else:
            arrays["features"] = _array(features, "features")
    if labels is not None:
        arrays["labels"] = _array(labels, "labels")
    for key, mask in (masks or {}).items():
        if key not in MASKS:
            raise ValueError(f"masks must be named {', '.join(MASKS)} (got {key!r})")
        arrays[f"{key}_mask"] = _mask(_array(mask, f"{key}_mask"), f"{key}_mask", graph.num_nodes)
    checked = dict(arrays)
    _features(checked, graph.num_nodes)
    _labels(checked, graph.num_nodes)
    with open(path, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _array(values: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # tensors that are sparse, on a device, of a graph
        raise TypeError(f"{name} must be an array: {error}") from None


def _what_it_is(arrays: dict[str, NDArray[Any]]) -> str:
    """A hint for files of other makers."""
    if {"class_source", "class_dests"} <= arrays.keys():
        return "this looks like a plan, which dgcl plan made from a graph"
    return f"it has {', '.join(sorted(arrays)) or 'none'}; dgcl.graph.save_graph writes graph files"


def _scalar(array: NDArray[Any], key: str) -> Any:
    if array.size != 1:
        raise ValueError(f"{key} must be one value (got shape {array.shape})")
    return array.reshape(())[()]


def _check_both_directions(graph: Graph) -> None:
    """Refuse, by degrees, a file that stores only one direction of each edge."""
    in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
    uneven = np.flatnonzero(in_degrees != out_degrees)
    if len(uneven):
        v = uneven[0]
        raise ValueError(
            f"directed is false, so both directions must be stored, but vertex {v} has {out_degrees[v]} "
            f"out-edges and {in_degrees[v]} in-edges"
        )


def _features(arrays: dict[str, NDArray[Any]], num_nodes: int) -> NDArray[Any] | csr_array[Any] | None:
    """Take the features out of `arrays`, and check them."""
    sparse = {key: arrays.pop(key) for key in SPARSE_FEATURES if key in arrays}
    dense = arrays.pop("features", None)
    if dense is not None:
        if sparse:
            raise ValueError("features are given twice, dense and as CSR; leave one of them out of the file")
        _check_rows(dense, "features", num_nodes)
        if dense.ndim < 2 or dense.dtype.kind not in "biuf":
            raise ValueError(
                f"features must be (num_nodes, F) numbers (got {dense.dtype}, shape {dense.shape})"
            )
        return dense
    if not sparse:
        return None
    for key in SPARSE_FEATURES:
        if key not in sparse:
            raise ValueError(f"array {key!r} is missing; CSR features have {', '.join(SPARSE_FEATURES)}")
    return _sparse_features(num_nodes, *(sparse[key] for key in SPARSE_FEATURES))


def _sparse_features(
    num_nodes: int, indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], shape: NDArray[Any]
) -> csr_array[Any]:
    """Build the CSR feature matrix, which scipy would accept unchecked."""
    from scipy.sparse import csr_array

    size = as_ids(shape, "feat_shape")
    if len(size) != 2 or size.min() < 0:
        raise ValueError(f"feat_shape must be two sizes (got {size.tolist()})")
    rows, columns = size.tolist()
    if rows != num_nodes:
        raise ValueError(
            f"feat_shape says {rows} rows, but the graph has {num_nodes} vertices, each with one row"
        )
    ptr, ids = as_ids(indptr, "feat_indptr"), as_ids(indices, "feat_indices")
    if len(ptr) != rows + 1 or ptr[0] != 0 or (np.diff(ptr) < 0).any() or ptr[-1] != len(ids):
        raise ValueError(f"feat_indptr must rise from 0 to the {len(ids)} feat_indices in {rows + 1} entries")
    if any_outside(ids, columns):
        raise ValueError(f"feat_indices must be columns 0..{columns - 1} (got {ids.min()}..{ids.max()})")
    if data.shape != ids.shape or data.dtype.kind not in "biuf":
        raise ValueError(f"feat_data must be {len(ids)} numbers (got {data.dtype}, shape {data.shape})")
    return csr_array((data, ids, ptr), shape=(rows, columns))


def _labels(arrays: dict[str, NDArray[Any]], num_nodes: int) -> NDArray[Any] | None:
    """Take the labels out of `arrays`, one row per vertex, and check them; integer classes as int64."""
    labels = arrays.pop("labels", None)
    if labels is None:
        return None
    _check_rows(labels, "labels", num_nodes)
    if labels.dtype.kind not in "biuf":
        raise ValueError(f"labels must be numbers (got dtype {labels.dtype})")
    return labels.astype(np.int64) if labels.ndim == 1 and labels.dtype.kind in "iu" else labels


def _mask(mask: NDArray[Any], key: str, num_nodes: int) -> NDArray[np.bool_]:
    """A mask as booleans; 0 and 1 are taken for them."""
    _check_rows(mask, key, num_nodes)
    if mask.ndim != 1:
        raise ValueError(f"{key} must have one dimension (got shape {mask.shape})")
    if mask.dtype.kind not in "biu" or (mask.dtype.kind != "b" and not np.isin(mask, (0, 1)).all()):
        raise ValueError(f"{key} must be booleans (got dtype {mask.dtype}); a list of vertices is not a mask")
    return mask.astype(np.bool_)


def _check_rows(array: NDArray[Any], key: str, num_nodes: int) -> None:
    rows = array.shape[0] if array.ndim else None
    if rows != num_nodes:
        raise ValueError(f"{key} must have one row per vertex, {num_nodes} (got shape {array.shape})")
