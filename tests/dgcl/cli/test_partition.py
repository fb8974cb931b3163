"""`dgcl partition`: the file it writes, and figures that are counted again here, edge by edge."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import Run, save_graph

EDGES = [(0, 1), (0, 5), (1, 2), (2, 4), (3, 0), (4, 3), (5, 2)]


@pytest.mark.parametrize("method", ["metis", "random", "range"])
def test_figures(run: Run, folder: Path, method: str):
    report = run(
        "partition", "graph.npz", "--ranks", 3, "--partition", method, "--out", "out.npy", "--json"
    ).json
    part = np.load(folder / "out.npy", allow_pickle=False)
    assert part.dtype == np.int32
    assert part.shape == (6,)
    assert report["sizes"] == np.bincount(part, minlength=3).tolist() == [2, 2, 2]
    assert report["balance"] == 1.0
    crossing = {(u, int(part[v])) for u, v in EDGES if part[u] != part[v]}
    assert report["cut_edges"] == sum(part[u] != part[v] for u, v in EDGES)
    assert report["boundary_vertices"] == len({u for u, _ in crossing})
    assert report["deliveries"] == len(crossing)


def test_a_folder_of_part_files(run: Run, folder: Path):
    """Cliques in files whose heads are in no order, read in passes."""
    cliques = np.concatenate([30 * k + np.stack(np.nonzero(1 - np.eye(30))) for k in range(32)], axis=1)
    edges = np.concatenate([cliques[:, ::2], np.random.default_rng(0).permutation(cliques.T).T], axis=1)
    (folder / "files").mkdir()
    for number, (sources, heads) in enumerate(np.array_split(edges, 3, axis=1)):
        np.savez(folder / f"files/{number}.npz", sources=sources, heads=heads)
    report = run("partition", "files", "--ranks", 4, "--out", "out.npy", "--json").json
    part = np.load(folder / "out.npy", allow_pickle=False)
    assert (report["method"], report["num_edges"], report["sizes"]) == (
        "streaming",
        edges.shape[1],
        [240] * 4,
    )
    assert report["cut_edges"] == (part[edges[0]] != part[edges[1]]).sum() == 0
    for refused in ("--balance edges", "--out parts/", "--partition metis"):
        words = run("partition", "files", "--ranks", 4, *refused.split()).err
        assert re.search(r"goes with a graph file|method of an EdgeStream must be", words)


def test_text_has_the_figures(run: Run, folder: Path):
    outcome = run("partition", "graph.npz", "--ranks", 3, "--partition", "range", "--out", "out.npy")
    assert outcome.status == 0
    assert outcome.err == ""
    assert "6 vertices, 7 edges" in outcome.out
    assert "rows per layer" in outcome.out


def test_same_seed_same_parts_in_any_format(run: Run, folder: Path):
    files = []
    for name, graph in itertools.product("ab", ("graph.npz", "graph.txt")):
        out = f"{name}-{graph}.npy"
        assert run("partition", graph, "--ranks", 2, "--seed", 5, "--out", out).status == 0
        files.append((folder / out).read_bytes())
    assert len(set(files)) == 1


def test_parts_follow_the_machines_of_a_topology(run: Run, folder: Path):
    """Two dense halves, one bridge: each half must end up on one of two machines."""
    half = [(u, v) for u in range(48) for v in range(48) if u != v]
    shuffled = np.random.default_rng(1).permutation(96)
    edges = [*half, *((u + 48, v + 48) for u, v in half), (0, 48)]
    save_graph(folder / "halves.npz", 96, [(shuffled[u], shuffled[v]) for u, v in edges])
    argv = ["partition", "halves.npz", "--ranks", 16, "--topology", "dgx1x2", "--out", "out.npy"]
    assert run(*argv).status == 0
    machine = np.load(folder / "out.npy")[shuffled] // 8
    assert len(set(machine[:48])) == len(set(machine[48:])) == 1
    assert machine[0] != machine[48]


def test_how_an_edge_list_was_read_is_logged(run: Run, folder: Path):
    (folder / "snap.txt").write_text("# Undirected graph: x\n0 1\n1 2\n2 3\n0 3\n")
    argv = ("--ranks", 2, "--out", "out.npy", "--json")
    outcome = run("partition", "snap.txt", *argv)
    assert outcome.json["num_edges"] == 8
    assert "snap.txt: each line 'u v' read as an edge both ways" in outcome.err
    assert "--undirected reads both" in run("partition", "graph.txt", *argv).err
    assert run("partition", "graph.txt", "--undirected", *argv).json["num_edges"] == 2 * len(EDGES)


def test_json_stands_alone_where_compiled_code_prints():
    """METIS prints on the standard output of its process."""
    command = (
        "import ctypes; from dgcl.cli.output import step\n"
        "with step('partitioning'): ctypes.CDLL(None).puts(b'from C')\n"
        "print('{}')"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{}\n", "from C\n")


def test_a_text_file_is_read_as_it_says_or_as_the_person_says(run: Run, folder: Path):
    (folder / "g.graph").write_text("4 4\n2 4\n1 3\n2 4\n1 3\n")
    (folder / "g.txt").write_text("# Nodes: 9 Edges: 1\n70 7\n")
    sizes = {
        "g.graph": (4, 8),
        "g.graph --format edges": (5, 5),
        "g.txt --compact": (2, 1),
        "g.txt --num-nodes 99": (99, 1),
    }
    for line, size in sizes.items():
        outcome = run("partition", *line.split(), "--ranks", 2, "--json")
        assert (outcome.json["num_nodes"], outcome.json["num_edges"]) == size
        assert ("announces 9 vertices" in outcome.err) == ("g.txt" in line)
