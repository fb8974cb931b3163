"""METIS graphs: what lines mean with every form of header, what is refused, and what is no METIS graph."""

import gzip
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from dgcl.graph.graph_files import read_graph
from tests.support.graphs import edge_list
from tests.support.samples import named

CYCLE = "4: 0>1 0>3 1>0 1>2 2>1 2>3 3>0 3>2"


def read(folder: Path, text: str, **options: Any) -> str:
    """Vertices, and edges in their order, of a file with this text."""
    path = folder / "g.txt"
    path.write_text(text, newline="")
    graph = read_graph(path, **options).graph
    return f"{graph.num_nodes}: {' '.join(f'{u}>{v}' for u, v in edge_list(graph))}"


@named(
    "text, edges",
    {
        "plain": ("4 4\n2 4\n1 3\n2 4\n1 3\n", CYCLE),
        "comments-tabs-windows": ("% x\r\n4\t4\r\n2 4\r\n%\r\n1\t3\r\n  2 4 \r\n 1 3\r\n\r\n", CYCLE),
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
        "counts-above-edges": ("4 3\n0 1\n2 0\n1 1\n", "4: 0>1 2>0 1>1"),
        "counts-above-weighted-edges": ("# mine\n\n3 2\n# more\n0 1 .5\n\n2 0 7\n", "3: 0>1 2>0"),
        "three-counts-commas": ("3,3,2\r\n0,1,5\r\n1,0,6\r\n", "3: 0>1 1>0"),
        "counts-above-edges-from-1": ("4 4\n1 2\n2 3\n3 4\n4 1\n", "4: 0>1 1>2 2>3 3>0"),
        "no-counts-ids-are-larger": ("4 2\n0 1\n4 2\n", "5: 4>2 0>1 4>2"),
        "no-counts-fewer-follow": ("4 2\n0 1\n", "5: 4>2 0>1"),
        "no-counts-more-follow": ("4 1\n0 1\n2 0\n", "5: 4>1 0>1 2>0"),
    },
)
def test_lines_are_neighbours_where_all_agree_and_else_edges(tmp_path, text: str, edges: str):
    assert read(tmp_path, text) == edges


def test_any_graph(tmp_path):
    theirs = nx.gnm_random_graph(300, 900, seed=1)
    lines = ["300 900 001", *(" ".join(f"{v + 1} 3" for v in theirs[u]) for u in theirs)]
    (tmp_path / "g").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert {*edge_list(read_graph(tmp_path / "g").graph)} == {*theirs.to_directed().edges}


def test_ids_below_counts_are_those_of_the_file(tmp_path):
    (tmp_path / "g").write_text("9 2\n1 9\n9 5\n")
    for compact, ids in (False, range(1, 10)), (True, (1, 5, 9)):
        assert list(read_graph(tmp_path / "g", compact=compact).node_ids) == [*ids]


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
    },
)
def test_what_is_wrong_is_named(tmp_path, text: str, message: str):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text, format="metis")


def test_who_knows_better_says_so(tmp_path):
    text = "4 4\n2 4\n1 3\n2 4\n1 3\n"
    assert read(tmp_path, text, format="edges") == "5: 4>4 2>4 1>3 2>4 1>3"
    with pytest.raises(ValueError, match="format='edges' reads one"):
        read(tmp_path, text, compact=True)
    with pytest.raises(ValueError, match="MatrixMarket"):
        read(tmp_path, text, format="mtx")
    with pytest.raises(ValueError, match=r"promises 8 edges.*names 8 neighbours"):
        read(tmp_path, "4 8" + text[3:])
