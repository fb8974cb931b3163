"""dgcl.graph.graph_files: npz files, read as they were written, and errors that name the array at fault."""

import gzip
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given

import dgcl
from dgcl.graph import GraphFile, as_graph, read_graph, save_graph
from tests.support.graphs import edge_indices, edge_list, real_graph
from tests.support.samples import named


def npz_arrays(**changes: Any) -> dict[str, Any]:
    """A correct file's arrays: 0->1, 0->2, 2->0; None takes one out."""
    arrays: dict[str, Any] = {
        "num_nodes": 3,
        "directed": True,
        "indptr": np.array([0, 2, 2, 3], np.int32),
        "indices": np.array([1, 2, 0], np.int32),
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


CSR_FEATURES = {
    "feat_indptr": np.array([0, 1, 1, 3]),
    "feat_indices": np.array([1, 0, 1], np.int16),
    "feat_data": np.array([5, 6, 7], np.float32),
    "feat_shape": np.array([3, 2]),
}


def read_bytes(folder: Path, content: bytes) -> GraphFile:
    path = folder / "g.npz"
    path.write_bytes(content)
    return read_graph(path)


class TestNpz:
    def read(self, folder: Path, **changes: Any) -> GraphFile:
        path = folder / "graph.npz"
        np.savez(path, **npz_arrays(**changes))
        return read_graph(path)

    def test_edges_by_position(self, tmp_path):
        assert edge_list(self.read(tmp_path).graph) == [(0, 1), (0, 2), (2, 0)]

    @named(
        "stored",
        {"csr": CSR_FEATURES, "dense": {"features": np.array([[0, 5], [0, 0], [6, 7]], np.float32)}},
    )
    def test_features(self, tmp_path, stored: dict[str, Any]):
        features = self.read(tmp_path, **stored).features
        assert features is not None
        assert features.dtype == np.float32
        assert features.tolist() == [[0, 5], [0, 0], [6, 7]]

    def test_labels_masks_and_the_rest(self, tmp_path):
        found = self.read(
            tmp_path,
            labels=np.array([1, 0, -1], np.int8),
            train_mask=np.array([1, 0, 0], np.uint8),
            test_mask=np.array([False, False, True]),
            feat_known=np.array([True, True, False]),
        )
        assert found.features is None
        assert found.labels is not None
        assert (found.labels.dtype, found.labels.tolist()) == (np.int64, [1, 0, -1])
        assert {key: mask.tolist() for key, mask in found.masks.items()} == {
            "train": [True, False, False],
            "test": [False, False, True],
        }
        assert list(found.extra) == ["feat_known"]

    @named(
        "changes, message",
        {
            "no-indptr": ({"indptr": None}, "array 'indptr' is missing"),
            "no-directed": ({"directed": None}, "array 'directed' is missing"),
            "count": ({"num_nodes": 4}, "indptr is for 3 vertices, but num_nodes is 4"),
            "counts": ({"num_nodes": np.array([3, 3])}, r"num_nodes must be one value"),
            "float-count": ({"num_nodes": 3.0}, "num_nodes must be an integer"),
            "range": ({"indices": np.array([1, 3, 0])}, "edge 1 is 0 -> 3"),
            "dtype": ({"indices": np.array([1.0, 2.0, 0.0])}, "indices must hold integers"),
            "objects": (
                {"indices": np.array([1, None, 0])},
                "array 'indices' has no usable npy header .dtype object",
            ),
            "one-direction": ({"directed": False}, "vertex 0 has 2 out-edges and 1 in-edges"),
            "features": ({"features": np.zeros((2, 4))}, r"features must have one row per vertex, 3"),
            "flat-features": ({"features": np.zeros(3)}, r"features must be \(num_nodes, F\)"),
            "two-features": ({"features": np.zeros((3, 1)), **CSR_FEATURES}, "given twice"),
            "half-features": ({**CSR_FEATURES, "feat_data": None}, "'feat_data' is missing"),
            "feature-rows": ({**CSR_FEATURES, "feat_shape": np.array([2, 2])}, "says 2 rows"),
            "feature-columns": ({**CSR_FEATURES, "feat_shape": np.array([3, 1])}, r"columns 0\.\.0"),
            "feature-rise": ({**CSR_FEATURES, "feat_indptr": np.array([0, 2, 1, 3])}, "feat_indptr"),
            "feature-data": ({**CSR_FEATURES, "feat_data": np.zeros(2)}, "feat_data must be 3 numbers"),
            "labels": ({"labels": np.zeros(2, int)}, "labels must have one row per vertex, 3"),
            "label-words": ({"labels": np.array(["a", "b", "c"])}, "labels must be numbers"),
            "mask": ({"val_mask": np.zeros(4, bool)}, "val_mask must have one row per vertex"),
            "mask-of-ids": ({"val_mask": np.array([0, 2, 1])}, "val_mask must be booleans"),
        },
    )
    def test_errors_name_file_and_array(self, tmp_path, changes: dict[str, Any], message: str):
        with pytest.raises(ValueError, match=f"^{tmp_path / 'graph.npz'}: .*{message}"):
            self.read(tmp_path, **changes)

    def test_cut_file(self, tmp_path):
        np.savez(tmp_path / "g.npz", **npz_arrays())
        data = (tmp_path / "g.npz").read_bytes()
        for size in range(0, len(data) - 1, 97):
            with pytest.raises(ValueError, match=r"g\.npz: .*not an npz archive"):
                read_bytes(tmp_path, data[:size])

    @named(
        "content, message",
        {
            "text": (b"hello", "not an npz archive"),
            "empty": (b"", "not an npz archive"),
            "npy": (b"\x93NUMPY\x01\x00", "pass the array itself"),
        },
    )
    def test_what_is_no_archive(self, tmp_path, content: bytes, message: str):
        with pytest.raises(ValueError, match=message):
            read_bytes(tmp_path, content)

    @pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
    def test_scipys_own_files(self, tmp_path, kind: str):
        dense = np.diag([1, 2, 3, 4], 1) + np.diag([5, 6, 7], -2)
        sp.save_npz(tmp_path / "g.npz", sp.csr_array(dense).asformat(kind))
        found = read_graph(tmp_path / "g.npz").graph
        assert found.num_nodes == 5
        assert {*edge_list(found)} == {*zip(*map(list, dense.nonzero()), strict=True)}
        np.savez(tmp_path / "g.npz", format=kind, shape=(5, 5))
        with pytest.raises(ValueError, match=r"g\.npz: "):
            read_graph(tmp_path / "g.npz")

    @named(
        "content, line",
        {
            "torch": (torch.save, "dgcl.graph.as_graph(torch.load({}, weights_only=False))"),
            "pickle": (pickle.dump, "dgcl.graph.as_graph(pickle.load(open({}, 'rb')))"),
            "dgl": (bytes.fromhex("3fa1b446f04f2edd02"), "dgcl.graph.as_graph(dgl.load_graphs({})[0][0])"),
            "zstandard": (bytes.fromhex("28b52ffd"), "zstd -d {}"),
            "tar": (gzip.compress(bytes(257) + b"ustar"), "tar -xf {}"),
        },
    )
    def test_files_of_others_are_named_with_the_line_that_converts_them(
        self, tmp_path, content: Any, line: str
    ):
        path, edges = tmp_path / "g.bin", torch.tensor([[0, 1, 2], [1, 2, 0]])
        with path.open("wb") as file:
            file.write(content) if isinstance(content, bytes) else content(edges, file)
        line = line.format(repr(str(path)))
        with pytest.raises(ValueError, match=re.escape(line)):
            read_graph(path)
        if callable(content):
            assert eval(line, {"dgcl": dgcl, "pickle": pickle, "torch": torch}).num_edges == 3

    @pytest.mark.parametrize("option", ["compact", "undirected"])
    def test_options_of_edge_lists_are_refused(self, tmp_path, option: str):
        np.savez(tmp_path / "g.npz", **npz_arrays())
        with pytest.raises(ValueError, match="are for text edge lists"):
            read_graph(tmp_path / "g.npz", **{option: True})


class TestSave:
    @given(drawn=edge_indices())
    def test_what_is_saved_is_read(self, tmp_path_factory, drawn: Any):
        num_nodes, edges = drawn
        path = tmp_path_factory.mktemp("save") / "any-name"
        features = np.arange(2.0 * num_nodes).reshape(num_nodes, 2)
        labels = np.arange(num_nodes) % 3
        save_graph(
            path, as_graph(edges, num_nodes), features=features, labels=labels, masks={"train": labels == 0}
        )
        found = read_graph(path)
        assert found.graph.num_nodes == num_nodes
        by_source = edges[:, np.argsort(edges[0], kind="stable")]
        assert edge_list(found.graph) == [(u, v) for u, v in by_source.T.tolist()]
        assert found.features is not None
        assert found.labels is not None
        np.testing.assert_array_equal(found.features, features)
        np.testing.assert_array_equal(found.labels, labels)
        np.testing.assert_array_equal(found.masks["train"], labels == 0)
        opposite = sorted((v, u) for u, v in edges.T.tolist())
        with np.load(path) as arrays:
            assert bool(arrays["directed"]) == (opposite != sorted((u, v) for u, v in edges.T.tolist()))

    def test_sparse_features(self, tmp_path):
        features = sp.random_array((4, 5), density=0.4, format="coo", rng=np.random.default_rng(0))
        save_graph(tmp_path / "g.npz", as_graph([[0], [3]]), features=features)
        found = read_graph(tmp_path / "g.npz")
        assert sp.issparse(found.stored_features)
        np.testing.assert_array_equal(found.features, features.toarray())

    @named(
        "given, message",
        {
            "features": ({"features": np.zeros((3, 1))}, "features must have one row per vertex, 2"),
            "sparse": ({"features": sp.csr_array((3, 1))}, "feat_shape says 3 rows"),
            "labels": ({"labels": [1]}, "labels must have one row per vertex"),
            "mask-name": ({"masks": {"dev": [True, False]}}, "named train, val, test"),
            "mask": ({"masks": {"val": [True]}}, "val_mask must have one row per vertex"),
        },
    )
    def test_nothing_is_written_where_lengths_differ(self, tmp_path, given: dict[str, Any], message: str):
        with pytest.raises(ValueError, match=message):
            save_graph(tmp_path / "g.npz", as_graph([[0], [1]]), **given)
        assert not (tmp_path / "g.npz").exists()


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_graph(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "name, num_nodes, num_edges, features, split",
    [
        ("cora", 2708, 10556, (2708, 1433), {"train": 140, "val": 500, "test": 1000}),
        ("ogbn_arxiv", 169343, 1166243, None, {"train": 90941, "val": 29799, "test": 48603}),
        ("ppi", 14755, 450540, None, {"train": 9716, "val": 1825, "test": 3214}),
    ],
)
def test_real_graphs(name: str, num_nodes: int, num_edges: int, features: Any, split: dict[str, int]):
    """The published sizes."""
    found = read_graph(real_graph(name))
    assert (found.graph.num_nodes, found.graph.num_edges) == (num_nodes, num_edges)
    assert (None if found.stored_features is None else found.stored_features.shape) == features
    assert {key: int(mask.sum()) for key, mask in found.masks.items()} == split


def test_a_graph_without_edge_ids(tmp_path):
    graph = as_graph([[2, 0, 1, 2], [0, 1, 0, 1]])
    save_graph(tmp_path / "g.npz", graph)
    whole, lean = (read_graph(tmp_path / "g.npz", edge_ids=kept).graph for kept in (True, False))
    assert whole.edge_ids is not None
    assert lean.edge_ids is None
    assert np.array_equal(lean.indptr, whole.indptr)
    assert np.array_equal(lean.indices, whole.indices)
