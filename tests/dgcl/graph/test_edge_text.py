"""Text edge lists and Matrix Market files: what their lines mean, and errors that name file and line."""

import bz2
import gzip
import io
import lzma
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph, edge_text
from dgcl.graph.graph_files import read_graph
from tests.support.graphs import edge_indices, edge_list
from tests.support.samples import named


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


class TestEdgeList:
    @named(
        "text, edges",
        {
            "blanks": ("0 1\n1 2\n", [(0, 1), (1, 2)]),
            "tabs-no-last-newline": ("0\t1\n1\t2", [(0, 1), (1, 2)]),
            "commas-windows": ("0,1\r\n1,2\r\n", [(0, 1), (1, 2)]),
            "comments-and-blank-lines": ("# Nodes: 9\n\n  \n# more\n0 1\n", [(0, 1)]),
            "comments-behind": ("0 1 # why\n2 0#why\n", [(0, 1), (2, 0)]),
            "more-columns": ("% asym\n3 1 0.5 1082040961\n1 3 nan -7\n", [(3, 1), (1, 3)]),
            "repeats-and-loops": ("2 0\n2 0\n1 1\n", [(2, 0), (2, 0), (1, 1)]),
            "byte-order-mark": ("\ufeff0 1\n", [(0, 1)]),
            "leading-zeros": ("  007   1  \n", [(7, 1)]),
            "old-macintosh": ("0 1\r1 2\r", [(0, 1), (1, 2)]),
            "commas-and-blanks": ("0, 1 # why\n 1 ,2\n", [(0, 1), (1, 2)]),
        },
    )
    @named("pack", {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress})
    def test_lines_are_edges(self, tmp_path, text: str, edges: Any, pack: Any):
        graph = read_graph(write(tmp_path / "graph", pack(text.encode()))).graph
        assert edge_list(graph) == edges
        assert graph.num_nodes == max(map(max, edges)) + 1

    def test_ids_may_be_compacted(self, tmp_path):
        found = read_graph(write(tmp_path / "g", "100 7\n7 1000000000000\n"), compact=True)
        assert edge_list(found.graph) == [(1, 0), (0, 2)]
        assert found.node_ids is not None
        assert found.node_ids.tolist() == [7, 100, 10**12]

    def test_lines_may_stand_for_both_directions(self, tmp_path):
        found = read_graph(write(tmp_path / "g", "0 1\n1 1\n2 0\n"), undirected=True)
        assert edge_list(found.graph) == [(0, 1), (1, 1), (2, 0), (1, 0), (0, 2)]

    @pytest.mark.parametrize(
        "header, undirected",
        [
            ("# Undirected graph: ../x.txt\n# Nodes: 4 Edges: 4\n", True),
            ("% sym unweighted\n% 4 4\n", True),
            ("# Directed graph (each unordered pair of nodes is saved once): x.txt\n", False),
            ("% asym weighted\n", False),
            ("", False),
        ],
    )
    def test_a_header_says_whether_lines_stand_for_both_directions(
        self, tmp_path, header: str, undirected: bool
    ):
        path = write(tmp_path / "g.txt", header + "0 1\n1 2\n# undirected\n2 3\n0 3\n")
        for said in (None, True, False):
            file = read_graph(path, undirected=said)
            assert file.undirected is (undirected if said is None else said)
            assert file.graph.num_edges == (8 if file.undirected else 4)

    @named(
        "header, warned",
        {
            "right": ("# Nodes: 4 Edges: 2", ""),
            "right-but-for-gaps": ("# x\n# Nodes: 2\tEdges: 2", ""),
            "right-from-1": ("% sym unweighted\n% 2 3 3", ""),
            "more-vertices": (
                "# Nodes: 9 Edges: 2",
                "9 vertices and 2 edges, but there are 2 edges, of 2 vertices",
            ),
            "fewer-edges": ("# Nodes: 4 Edges: 1", "4 vertices and 1 edges, but there are 2 edges"),
            "more-edges": ("% asym positive\n% 3 2 2", "2 vertices and 3 edges, but there are 2 edges"),
        },
    )
    def test_a_comment_that_announces_other_numbers_is_a_warning(self, tmp_path, header: str, warned: str):
        with warnings.catch_warnings(record=True) as found:
            read_graph(write(tmp_path / "g.txt", f"{header}\n1 3\n3 1\n"))
        assert bool(found) == bool(warned)
        assert all(warned in str(each.message) for each in found)

    def test_number_of_vertices_may_be_given(self, tmp_path):
        path = write(tmp_path / "g", "0 1\n")
        assert read_graph(path, num_nodes=5).graph.num_nodes == 5
        assert as_graph(path, num_nodes=5).num_nodes == 5
        assert read_graph(write(tmp_path / "none", "# none\n"), num_nodes=5).graph.num_edges == 0

    @named(
        "text, message",
        {
            "words": ("0 1\na b\n", r":2: expected two vertex ids, whole numbers \(got 'a b'\)"),
            "header": ("source,target\n0,1\n", r":1: .*'source,target'"),
            "one-column": ("0 1\n\n# x\n5\n", r":4: expected two vertex ids.*'5'"),
            "half-a-number": ("0 1\n2 x3\n", r":2: .*whole numbers"),
            "number-and-more": ("0 1\n2 3x\n", r":2: .*whole numbers"),
            "float": ("0 1.0\n", r":1: .*whole numbers \(got '0 1.0'\)"),
            "negative": ("0 1\n0 -3\n", r":2: vertex ids must not be negative \(got '0 -3'\)"),
            "minus": ("0 - 3\n", r":1: .*whole numbers"),
            "overflow": (f"0 {2**63}\n", r":1: .*less than 2\*\*63"),
            "columns": ("0 1\n1 2 3\n", r":2: expected 2 columns as before"),
            "long-line": ("0 1\n" * 9 + "x" * 99, r":10: .*\(got 'x{37}\.\.\.'\)"),
            "no-edges": ("# nothing\n", "has no edges"),
            "empty-file": ("", "has no edges"),
            "far-too-many-vertices": ("0 99999999999\n", r"99999999999.*compact=True"),
            "binary": (b"\x00\x01\x02", "not a text file"),
            "zero-byte": (b"0 1\n1 2\x00\n", "not a text file"),
            "commas-then-blanks": ("0,1\n1 2\n", "with the same separator"),
            "wide-ids-then-words": (f"0 {2**31}\n0 x\n", r":2: .*whole numbers"),
            "cut-gzip": (gzip.compress(b"0 1\n" * 999)[:-9], "damaged gzip"),
            "cut-bzip2": (bz2.compress(b"0 1\n" * 999)[:-9], "damaged bz2"),
            "cut-xz": (lzma.compress(b"0 1\n" * 999)[:-9], "damaged lzma"),
            "no-xz": (b"\xfd7zXZ\x00 0 1\n", "damaged lzma"),
            "two-sets": ("% bip unweighted\n1 1\n1 2\n2 1\n", "two sets of vertices.*make them one: "),
        },
    )
    def test_errors_name_file_and_line(self, tmp_path, text: str | bytes, message: str):
        path = write(tmp_path / "bad.txt", text)
        with pytest.raises(ValueError, match=f"^{path}.*{message}"):
            read_graph(path)

    def test_other_numbers_of_vertices_are_refused(self, tmp_path):
        path = write(tmp_path / "bad.txt", "0 1\n1 5\n")
        with pytest.raises(ValueError, match=rf"^{path}:2: vertex ids must be 0\.\.4 \(got '1 5'\)"):
            read_graph(path, num_nodes=5)
        with pytest.raises(ValueError, match=f"^{path}: has 3 vertices, but num_nodes is 9"):
            read_graph(path, compact=True, num_nodes=9)

    @given(edge_indices(max_nodes=2000))
    def test_any_edges_and_the_line_of_an_error(self, drawn: tuple[int, np.ndarray]):
        _, edges = drawn
        text = io.BytesIO()
        np.savetxt(text, edges.T, fmt="%d", header="x\ny", delimiter="\t")
        good, bad = text.getvalue(), text.getvalue() + b"1 2\n3 ?\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edge_text, "open_text", lambda path: io.BytesIO(bad if path == "bad" else good))
            found = edge_text.read_edge_list("good")
            with pytest.raises(ValueError, match=f"^bad:{edges.shape[1] + 4}: .*'3 \\?'"):
                edge_text.read_edge_list("bad")
        np.testing.assert_array_equal(np.stack([found.src, found.dst]), edges)

    def test_networkx_reads_the_same(self, tmp_path):
        path = tmp_path / "g.txt"
        theirs = nx.gnp_random_graph(30, 0.2, seed=1, directed=True)
        nx.write_edgelist(theirs, path, data=False)
        assert edge_list(read_graph(path).graph) == list(theirs.edges)


class TestMatrixMarket:
    @given(edge_indices(), st.sampled_from(["pattern", "integer", "real", "complex"]))
    def test_entries_are_edges(self, drawn: tuple[int, np.ndarray], field: str):
        """As scipy writes them."""
        num_nodes, edges = drawn
        data = np.ones(edges.shape[1], {"complex": complex, "real": float}.get(field, int))
        matrix = sp.coo_array((data, (edges[0], edges[1])), shape=(num_nodes, num_nodes))
        with pytest.MonkeyPatch.context() as patch, io.BytesIO() as text:
            scipy.io.mmwrite(text, matrix, field=field, symmetry="general")
            patch.setattr(edge_text, "open_text", lambda path: io.BytesIO(text.getvalue()))
            found = edge_text.read_matrix_market("f")
        np.testing.assert_array_equal(np.stack([found.src, found.dst]), edges)
        assert found.num_nodes == num_nodes

    @pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric", "hermitian"])
    def test_symmetric_files_store_one_direction(self, tmp_path, symmetry: str):
        header = f"%%MatrixMarket matrix coordinate real {symmetry}\n% words\n3 3 3\n"
        graph = read_graph(write(tmp_path / "g.mtx", header + "2 1 5.0\n3 3 1\n3 1 0\n")).graph
        assert edge_list(graph) == [(1, 0), (2, 2), (2, 0), (0, 1), (0, 2)]

    def test_gzip_and_any_name(self, tmp_path):
        text = b"%%MatrixMarket MATRIX Coordinate Pattern General\n\n4 4 1\n1 4\n"
        graph = read_graph(write(tmp_path / "graph", gzip.compress(text))).graph
        assert (graph.num_nodes, edge_list(graph)) == (4, [(0, 3)])

    @named(
        "text, message",
        {
            "no-banner": ("1 2\n", ":1: expected '%%MatrixMarket"),
            "dense": ("%%MatrixMarket matrix array real general\n1 1\n1\n", ":1: .*'coordinate'.*'array'"),
            "field": ("%%MatrixMarket matrix coordinate blue general\n", ":1: the field .*'blue'"),
            "symmetry": ("%%MatrixMarket matrix coordinate real odd\n", ":1: the symmetry .*'odd'"),
            "vector": ("%%MatrixMarket vector coordinate real general\n", ":1: expected"),
            "no-sizes": ("%%MatrixMarket matrix coordinate real general\n% x\n", ":3: .*line of sizes"),
            "sizes": ("{}2 x 1\n", ":2: expected three sizes"),
            "rectangle": ("{}2 3 0\n", r":2: .*square.*2 x 3"),
            "no-vertices": ("{}0 0 0\n", ":2: .*no rows"),
            "range": ("{}2 2 1\n\n1 3\n", r":4: vertex ids must be 1\.\.2 \(got '1 3'\)"),
            "zero": ("{}2 2 1\n0 1\n", r":3: vertex ids must be 1\.\.2"),
            "too-many": ("{}2 2 1\n1 1\n2 2\n", "line 2 promises 1 entries, but there are 2"),
            "too-few": ("{}2 2 3\n1 1\n2 2\n", "line 2 promises 3 entries, but there are 2"),
            "values-in-a-pattern": ("{}2 2 1\n1 1 5.0\n", ":3: expected 2 columns"),
        },
    )
    def test_errors_name_file_and_line(self, tmp_path, text: str, message: str):
        path = write(
            tmp_path / "bad.mtx", text.replace("{}", "%%MatrixMarket matrix coordinate pattern general\n")
        )
        with pytest.raises(ValueError, match=f"^{path}.*{message}"):
            read_graph(path)
