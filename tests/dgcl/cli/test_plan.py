"""`dgcl plan`: the files it writes say what docs/plan-format.md says, and what it prints agrees with them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import Run

PLAN = ["plan", "graph.npz", "--topology", "line.json", "--part", "part.npy"]
PRINTED = {
    *("schema", "world_size", "method", "seed", "row_bytes", "stage_seconds", "predicted_seconds"),
    *("lower_bound_seconds", "gap", "direct_seconds", "planning_seconds", "version", "fingerprint"),
    *("num_classes", "num_trees", "num_stages", "boundary_vertices", "bytes_total"),
}


def needed(relation: Path) -> dict[tuple[int, int], int]:
    """Rows that each pair (owner, reader) exchanges, from the relation file alone."""
    with np.load(relation, allow_pickle=False) as file:
        rows = zip(file["source"].tolist(), file["dests"][:, 0].tolist(), file["count"].tolist(), strict=True)
        pairs: dict[tuple[int, int], int] = {}
        for source, mask, count in rows:
            for dest in range(int(file["world_size"])):
                if mask >> dest & 1:
                    pairs[source, dest] = pairs.get((source, dest), 0) + count
    return pairs


def test_relation_of_the_hand_made_graph(run: Run, folder: Path):
    assert run(*PLAN, "--relation-out", "r.npz").status == 0
    assert needed(folder / "r.npz") == {(0, 1): 1, (0, 2): 1, (1, 0): 1, (1, 2): 1, (2, 1): 2}


@pytest.mark.parametrize("method", ["auto", "spst"])
def test_printed_json_is_the_meta_of_the_file(run: Run, folder: Path, method: str):
    argv = [*PLAN, "--method", method, "--row-bytes", 100, "--seed", 7, "--out", "plan.npz", "--json"]
    printed = run(*argv).json
    assert set(printed) >= PRINTED
    assert "topology" not in printed
    with np.load(folder / "plan.npz", allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        arrays = dict(file)
    assert {key: printed[key] for key in meta if key != "topology"} == {
        key: value for key, value in meta.items() if key != "topology"
    }
    assert (meta["method"], meta["row_bytes"], meta["seed"], meta["world_size"]) == (method, 100, 7, 3)
    assert meta["topology"]["links"]
    assert meta["direct_seconds"] is None  # 0 and 2 have no link
    assert printed["num_classes"] == len(arrays["class_count"])
    assert printed["num_trees"] == len(arrays["tree_count"])
    assert printed["num_stages"] == len(meta["stage_seconds"]) == arrays["edge_stage"].max() + 1 == 2
    assert printed["boundary_vertices"] == arrays["class_count"].sum() == 6
    edges_per_tree = np.diff(arrays["edge_ptr"])
    assert printed["bytes_total"] == 100 * (edges_per_tree * arrays["tree_count"]).sum() == 700


def test_graph_and_its_relation_give_one_plan(run: Run, folder: Path):
    run(*PLAN, "--relation-out", "r.npz", "--out", "a.npz")
    run("plan", "--relation", "r.npz", "--topology", "line.json", "--out", "b.npz")
    with np.load(folder / "a.npz") as a, np.load(folder / "b.npz") as b:
        first, second = dict(a), dict(b)
    for name in first.keys() - {"meta"}:
        np.testing.assert_array_equal(first[name], second[name])
    assert json.loads(str(first["meta"]))["fingerprint"] == json.loads(str(second["meta"]))["fingerprint"]


@pytest.mark.parametrize("ranks", [None, 2, 3])
def test_ranks_take_the_first_devices(run: Run, folder: Path, ranks: int | None):
    argv = ["plan", "graph.npz", "--topology", "line.json", *(["--ranks", ranks] if ranks else []), "--json"]
    assert run(*argv).json["world_size"] == (ranks or 3)


def test_one_rank_sends_nothing(run: Run, folder: Path):
    printed = run("plan", "graph.npz", "--topology", "uniform:1", "--json").json
    assert (printed["bytes_total"], printed["predicted_seconds"], printed["gap"]) == (0, 0, 0)
    assert run("plan", "graph.npz", "--topology", "uniform:1").status == 0


def test_screen_names_machine_relation_methods_and_bound(run: Run, folder: Path):
    lines = run(*PLAN, "--compare", "direct,spst").out.splitlines()
    assert lines[0].startswith("machine   line: 3 devices")
    assert "6 boundary vertices" in lines[1]
    assert "6 rows to deliver" in lines[1]
    assert lines[2].startswith("takes ")
    assert lines[3].startswith("bound ")
    assert lines[4].startswith("fold ")
    methods = {line.split()[0]: line for line in lines[7:10]}
    assert list(methods) == ["direct", "spst", "auto"]
    assert "impossible" in methods["direct"]  # 0 and 2 have no link


def test_compared_methods(run: Run, folder: Path):
    assert len(run(*PLAN, "--json").json["report"]["methods"]) == 1
    printed = run(*PLAN, "--compare", "spst,direct,auto", "--json").json
    assert [method["method"] for method in printed["report"]["methods"]] == ["spst", "direct", "auto"]
    assert printed["method"] == "auto"


def test_explained_class(run: Run, folder: Path):
    """Vertex 0 is owned by 0 and read by 2 alone, which it reaches through 1."""
    told = run(*PLAN, "--explain", "0>2", "--json").json["explain"]
    assert told["vertices"] == 1
    (tree,) = told["trees"]
    assert [(edge["src"], edge["dst"], edge["relay"]) for edge in tree["edges"]] == [
        (0, 1, True),
        (1, 2, False),
    ]
    assert "relay" in run(*PLAN, "--explain", "0>2").out


def test_picture(run: Run, folder: Path):
    pytest.importorskip("matplotlib")
    assert run(*PLAN, "--plot", "p.svg").status == 0
    assert "graph.npz on line: auto plan for 3 ranks" in (folder / "p.svg").read_text()


def test_synthetic_relation(run: Run, folder: Path):
    argv = ["plan", "--synthetic", "web-google", "--scale", 0.01, "--topology", "dgx1", "--ranks", 4]
    first = run(*argv, "--relation-out", "r.npz", "--json").json
    assert first["world_size"] == 4
    assert first["boundary_vertices"] == np.load(folder / "r.npz")["count"].sum() > 0
    assert run(*argv, "--seed", 1, "--json").json["boundary_vertices"] != first["boundary_vertices"]


def test_without_out_nothing_is_written(run: Run, folder: Path):
    before = set(folder.iterdir())
    assert run(*PLAN).status == 0
    assert set(folder.iterdir()) == before


def test_files_are_confirmed_and_columns_explained(run: Run, folder: Path):
    out = run(*PLAN, "--out", "plan.npz", "--relation-out", "r.npz").out
    assert out.endswith("\nplan written to plan.npz\nrelation written to r.npz\n")
    assert "  takes, / bound: predicted time" in out
    assert "written" not in run(*PLAN).out
    out = run("simulate", "plan.npz", "--trace", "trace.json").out
    assert out.endswith("\ntrace written to trace.json\n")
