"""``dgcl grids``, ``dgcl plan --grid``, ``dgcl partition --grid``: golden counts of the toy graph, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.cli import main
from dgcl.planner import Plan, check_plan_file
from tests.dgcl.aggregation.test_aggregator import EXACT, dense, features
from tests.dgcl.awkward import Case
from tests.dgcl.grid.test_items import TOY
from tests.dgcl.workers.test_exchanges import in_ranges, toy_24


@pytest.fixture
def toy_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.txt"
    path.write_text("".join(f"{u} {v}\n" for u, v in zip(*toy_24().edges(), strict=True)))
    for ranks in (4, 8):
        np.save(tmp_path / f"part{ranks}.npy", in_ranges(24, ranks))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([*map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("ranks", [4, 8])
def test_all_grids_of_the_toy_graph(toy_file: Path, ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    part = toy_file.with_name(f"part{ranks}.npy")
    given = [
        "grids",
        toy_file,
        "--ranks",
        ranks,
        "--part",
        part,
        "--width",
        8,
        "--topology",
        f"uniform:{ranks}",
    ]
    status, out, _ = run(capsys, *given, "--json")
    assert status == 0
    told = {tuple(one["grid"]): one for one in json.loads(out)["grids"]}
    assert len(told) == {4: 6, 8: 10}[ranks]
    for sizes, (expanded, folded, _, edges) in TOY.items():
        if np.prod(sizes) == ranks:
            one = told[sizes]
            assert (one["expanded"], one["folded"], one["edges"]) == (expanded, folded, [edges] * ranks)
            most = max(e + f for e, f in zip(expanded, folded, strict=True))
            assert one["bytes"]["most"] == most * 4 * 8 // sizes[2]
            assert one["exchange_seconds"] >= one["lower_bound_seconds"] * (1 - 1e-12) > 0
    if ranks == 4:
        assert told[4, 1, 1]["published_bytes"]["mean"] == 144 * 4
    status, out, _ = run(capsys, *given)
    assert status == 0
    table, legend = out.split("\n\n")
    assert table.splitlines()[0].split()[:2] == ["grid", "edges"]
    assert len(table.splitlines()) == 1 + len(told)
    assert legend.startswith("  grid: parts, depth, slices\n")


def test_one_grid_is_planned_and_written(toy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [toy_file.with_name(name) for name in ("expand.npz", "fold.npz")]
    part = toy_file.with_name("part8.npy")
    given = ["plan", toy_file, "--part", part, "--topology", "uniform:8", "--grid", "2,2,2"]
    status, out, _ = run(capsys, *given, "--out", files[0], "--fold-out", files[1], "--json")
    assert status == 0
    assert json.loads(out)["expanded"] == [6, 6, 7, 7] * 2
    deliveries = []
    for file in files:
        check_plan_file(file)
        deliveries.append(Plan.load(file).relation.deliveries)
    assert deliveries == [52, 48]
    status, out, _ = run(capsys, *given)
    assert "2,2,2" in out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["plan", "--grid", "2,2,1", "--topology", "uniform:8"], "2 x 2 x 1 = 4 ranks, and there are 8"),
        (["plan", "--grid", "2,2", "--topology", "uniform:4"], "parts,depth,slices such as"),
        (
            ["plan", "--grid", "2d", "--edges", "cover", "--topology", "uniform:4"],
            "--edges goes without --grid",
        ),
        (["plan", "--grid", "2d", "--place", "--topology", "uniform:4"], "--place goes without --grid"),
        (["partition", "--parts", "4", "--grid", "2d", "--out", "part.npy"], "--grid goes with --out DIR/"),
        (
            ["partition", "--parts", "4", "--grid", "2d", "--edges", "tail", "--out", "d/"],
            "--edges goes without --grid",
        ),
    ],
)
def test_refusals(
    toy_file: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, arguments[0], toy_file, *arguments[1:])
    assert status == 2
    assert text in err


def load(folder: str, grid: Any) -> torch.Tensor | str:
    try:
        comm = dgcl.load_comm_info(folder, grid=grid)
    except ValueError as error:
        return str(error)
    x = comm.dispatch_features(features(24, 5))
    back = comm.rows(comm.slices(x))[:, :5] if comm.grid.depth == 1 else x
    assert torch.equal(back, x)
    return comm.collect(comm.aggregator()(x), None)


@pytest.mark.parametrize("grid", ["2,1,2", "1,1,4", "2,2,1", "4,1,1"])
def test_ranks_load_what_was_written(toy_file: Path, grid: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = f"{toy_file.with_name('parts')}/"
    status, _, _ = run(capsys, "partition", toy_file, "--parts", 4, "--grid", grid, "--out", folder)
    assert status == 0
    graph = toy_24()
    case = Case("", np.stack(graph.edges()).astype(np.int64), 24, np.ones(24, bool))
    wanted = dense(case, "sum", None) @ features(24, 5)
    for asked in (None, grid):
        for found in dgcl.launch(load, 4, folder, asked):
            torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)
    for said in dgcl.launch(load, 4, folder, "1,4,1"):
        assert f"it is of grid ({grid}), and grid (1,4,1) is asked for" in said
        assert "--grid 1,4,1" in said
