"""METIS graphs: what lines mean with every form of header, what is refused, and what is no METIS graph."""

import gzip
from pathlib import Path

import networkx as nx
import pytest

from dgcl.graph.files import read_graph
from tests.dgcl.graphs import edge_list
from tests.samples import named

CYCLE = "4: 0>1 0>3 1>0 1>2 2>1 2>3 3>0 3>2"


def read(folder: Path, text: str, **options: object) -> str:
    """Vertices, and edges in their order, of a file with this text."""
    path = folder / "g.txt"
    path.write_text(text, newline="")
    graph = read_graph(path, **options).graph  # type: ignore[arg-type]
    return f"{graph.num_nodes}: {' '.join(f'{u}>{v}' for u, v in edge_list(graph))}"


@named(
    "text, edges",
    {
        "plain": ("4 4\n2 4\n1 3\n2 4\n1 3\n", CYCLE),
        "comments-tabs-windows": (
            "% a cycle\r\n4\t4\r\n2 4\r\n%\r\n1\t3\r\n  2 4 \r\n 1 3\r\n\r\n",
            CYCLE,
        ),
        "edge-weights": ("4 4 1\n2 9 4 .5\n1 9 3 1\n2 1 4 1\n1 1 3 7", CYCLE),
        "vertex-weights": ("4 4 10\n7 2 4\n7 1 3\n7 2 4\n7 1 3\n", CYCLE),
        "two-vertex-weights": ("4 4 010 2\n7 8 2 4\n7 8 1 3\n7 8 2 4\n7 8 1 3\n", CYCLE),
        "sizes": ("4 4 100\n7 2 4\n7 1 3\n7 2 4\n7 1 3\n", CYCLE),
        "all": ("4 4 111 2\n7 8 9 2 1 4 1\n7 8 9 1 1 3 1\n7 8 9 2 1 4 1\n7 8 9 1 1 3 1\n", CYCLE),
        "none-of-them": ("4 4 000 1\n2 4\n1 3\n2 4\n1 3\n", CYCLE),
        "isolated": ("5 1\n\n4\n\n2\n\n", "5: 1>3 3>1"),
        "isolated-with-weights": ("3 1 11\n5\n6 3 1\n7 2 1", "3: 1>2 2>1"),
        "self-loop-once": ("2 2\n1 2\n1\n", "2: 0>0 0>1 1>0"),
        "parallel": ("2 2\n2 2\n1 1\n", "2: 0>1 0>1 1>0 1>0"),
        "edges": ("1 2\n2 1\n", "3: 1>2 2>1"),
        "edges-of-a-triangle": ("3 4\n1 2\n2 3\n3 1\n", "5: 3>4 1>2 2>3 3>1"),
        "an-edge-and-a-blank-line": ("1 0\n\n", "2: 1>0"),
        "as-many-edges-as-vertices": ("2 5\n1 1\n1 2\n", "6: 2>5 1>1 1>2"),
        "counts-above-edges": ("4 3\n0 1\n2 0\n1 1\n", "4: 0>1 2>0 1>1"),
        "counts-above-weighted-edges": ("# mine\n\n3 2\n# more\n0 1 .5\n\n2 0 7\n", "3: 0>1 2>0"),
        "three-counts-commas": ("3,3,2\r\n0,1,5\r\n1,0,6\r\n", "3: 0>1 1>0"),
        "counts-above-edges-from-1": ("4 3\n1 4\n4 2\n4 3\n", "4: 0>3 3>1 3>2"),
        "counts-above-edges-of-a-cycle": ("4 4\n1 2\n2 3\n3 4\n4 1\n", "4: 0>1 1>2 2>3 3>0"),
        "no-counts-ids-are-larger": ("4 2\n0 1\n4 2\n", "5: 4>2 0>1 4>2"),
        "no-counts-others-follow": ("4 2\n0 1\n", "5: 4>2 0>1"),
    },
)
def test_lines_are_neighbours_where_all_agree_and_else_edges(tmp_path, text: str, edges: str):
    assert read(tmp_path, text) == edges


def test_ids_below_counts_are_those_of_the_file(tmp_path):
    (tmp_path / "g").write_text("9 2\n1 9\n9 5\n")
    for compact, ids in (False, range(1, 10)), (True, (1, 5, 9)):
        assert list(read_graph(tmp_path / "g", compact=compact).node_ids) == [*ids]


@named("first, behind", {"plain": ("300 900", ""), "weighted": ("300 900 001", " 3")})
def test_any_graph(tmp_path, first: str, behind: str):
    theirs = nx.gnm_random_graph(300, 900, seed=1)
    lines = [" ".join(f"{v + 1}{behind}" for v in theirs[u]) for u in theirs]
    path = tmp_path / "g.graph.gz"
    path.write_bytes(gzip.compress("\n".join([first, *lines]).encode()))
    assert set(edge_list(read_graph(path).graph)) == set(theirs.to_directed().edges)


@named(
    "text, message",
    {
        "no-header": ("4\n1 2\n", r"vertices edges \[fmt \[ncon\]\]'.*'4'"),
        "words": ("2 1\n2\nx\n", "at vertex 2: 'x'"),
        "range": ("2 1\n3\n1\n", "at vertex 1: '3'"),
        "from-0": ("2 1\n1\n0\n", "at vertex 2: '0'"),
        "half-a-weight": ("2 1 1\n2 5\n1\n", "at vertex 2: '1'"),
        "too-few-lines": ("3 1\n2\n1\n", "at vertex 3"),
        "too-many-lines": ("2 1\n2\n1\n1\n", "at vertex 3"),
        "one-direction": ("3 1\n2\n3\n\n", "lines of both its ends"),
        "other-count": ("2 3\n2\n1\n", "promises 3 edges.*names 2"),
    },
)
def test_what_is_wrong_is_named(tmp_path, text: str, message: str):
    with pytest.raises(ValueError, match=rf"g\.txt: .*{message}"):
        read(tmp_path, text, format="metis")


def test_who_knows_better_says_so(tmp_path):
    text = "4 4\n2 4\n1 3\n2 4\n1 3\n"
    assert read(tmp_path, text, format="edges") == "5: 4>4 2>4 1>3 2>4 1>3"
    for options, message in (
        ({"compact": True}, "format='edges' reads one"),
        ({"format": "npz"}, "npz"),
        ({"format": "mtx"}, "MatrixMarket"),
        ({"format": "csv"}, "format must be one of edges, metis, mtx, npz"),
    ):
        with pytest.raises(ValueError, match=message):
            read(tmp_path, text, **options)
    with pytest.raises(ValueError, match="promises 8 edges"):  # all else agrees: no list of edges
        read(tmp_path, text.replace("4 4", "4 8", 1))
