"""``dgcl bench``: lines, footers and JSON; bad options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dgcl.cli.support import Run

QUICK = ["bench", "--threads", "-n", "3", "-w", "1"]


def test_a_pattern(run: Run, folder: Path):
    argv = "--ranks 3 --topology uniform -b 64 -e 4K -f 8 --width 16 --method direct,spst -J out.json"
    outcome = run(*QUICK, *argv.split())
    assert (outcome.status, outcome.err) == (0, "")
    lines = [line.split() for line in outcome.out.splitlines() if not line.startswith("#")]
    # Three blocks: 5 elements each for 64 bytes, 3 rows of 16 for 512, 21 for 4096.
    assert [(cells[0], cells[3], cells[4], cells[5]) for cells in lines] == [
        (size, width, method, verb)
        for size, width in (("60", "5"), ("576", "16"), ("4032", "16"))
        for method in ("direct", "spst")
        for verb in ("forward", "backward")
    ]
    assert "# Out of bounds values : 0 OK" in outcome.out
    assert "# JSON written to out.json" in outcome.out
    value = json.loads((folder / "out.json").read_text())
    assert [line["size"] for line in value["lines"]] == [60, 60, 576, 576, 4032, 4032]
    assert [line["busiest"] for line in value["lines"]] == [40, 40, 384, 384, 2688, 2688]
    assert [line["messages"] for line in value["lines"][::2]] == [6] * 3
    assert value["settings"]["iterations"] == 3


@pytest.mark.parametrize(
    "options, sizes",
    [
        ("", [8 * 2**k for k in range(24)]),
        ("-f 8", [8 * 8**k for k in range(8)]),
        ("-b 1M", [1 << 20]),
        ("-e 64", [8, 16, 32, 64]),
        ("-e 4", [4]),
        ("-b 5 -e 100 -f 3", [5, 15, 45]),
    ],
)
def test_the_sizes_of_a_sweep(options: str, sizes: list[int]):
    from dgcl.cli import _parser, bench_cases

    assert bench_cases.sizes(_parser().parse_args(["bench", *options.split()])) == sizes


def test_a_ring_has_one_block(run: Run):
    argv = "--ranks 3 --topology uniform --pattern ring -b 64 --json"
    outcome = run(*QUICK, *argv.split())
    (line,) = outcome.json["lines"]
    assert (line["size"], line["busiest"], line["messages"]) == (64, 64, 3)


def test_a_graph_in_json(run: Run, folder: Path):
    argv = "graph.npz --part part.npy --ranks 3 --topology line.json --width 4,32 --json"
    outcome = run(*QUICK, *argv.split(), "--method", "spst,optimal")
    assert outcome.status == 0
    lines = outcome.json["lines"]
    assert [(line["method"], line["width"]) for line in lines] == [
        ("spst", 4),
        ("optimal", 4),
        ("spst", 32),
        ("optimal", 32),
    ]
    assert {line["halo_rows"] for line in lines} == {6}
    assert lines[0]["stages"] == 2
    assert lines[0]["bound_seconds"] <= lines[0]["model_seconds"]


def test_sizes_of_a_graph_are_reached_by_the_width(run: Run, folder: Path):
    argv = "graph.npz --part part.npy --ranks 3 --topology uniform -b 1 -e 1K -f 16 --json"
    outcome = run(*QUICK, *argv.split())
    # 6 halo rows over 3 ranks: 8 bytes for each element of a row.
    assert [line["width"] for line in outcome.json["lines"]] == [1, 2, 32]


def test_a_relation(run: Run, plan_file: Path):
    argv = "--relation relation.npz --ranks 3 --topology line.json"
    outcome = run(*QUICK, *argv.split())
    assert outcome.status == 0
    assert "%bound" in outcome.out


def test_a_wrong_element_is_exit_status_1(run: Run, folder: Path, monkeypatch):
    from dgcl.bench import measure
    from dgcl.bench.transports import Baseline

    class Corrupt(Baseline):
        def expand(self, rows, exchange=0):  # type: ignore[no-untyped-def]
            return super().expand(rows, exchange) + 1

    monkeypatch.setattr(measure, "calls_of", Corrupt)
    outcome = run(*QUICK, "--topology", "uniform", "-b", "256")
    assert outcome.status == 1
    assert "FAILED" in outcome.out
    forward, backward = (line.split() for line in outcome.out.splitlines() if not line.startswith("#"))
    assert forward[11:16] == ["-"] * 5
    assert int(forward[16]) > 0
    assert backward[16] == "0"


def test_plans_by_collectives(run: Run):
    result = run(*QUICK, *["--ranks", "3", "--topology", "uniform", "-b", "4K", "--channel", "collective"])
    assert result.status == 0
    assert "# Out of bounds values : 0 OK" in result.out.splitlines()


@pytest.mark.slow
def test_ranks_that_are_processes(folder: Path):
    methods = ["auto", "gloo", "gloo-halo"]
    argv = f"-m dgcl bench --ranks 2 -n 3 -w 1 -b 4K --method {','.join(methods)}"
    outcome = subprocess.run([sys.executable, *argv.split()], capture_output=True, text=True, check=True)
    assert "# Out of bounds values : 0 OK" in outcome.stdout.splitlines()
    rows = [line for line in outcome.stdout.splitlines() if not line.startswith("#")]
    assert [line.split()[4] for line in rows] == [method for method in methods for _ in range(2)]
    assert outcome.stderr == ""


def test_two_runs_are_compared(run: Run, folder: Path):
    argv = [*QUICK, *["--ranks", "2", "--topology", "uniform", "-b", "64", "-f", "64", "--method", "direct"]]
    run(*argv, "-e", "4K", "-J", "first.json")
    compared = run(*argv, "-e", "256K", "--against", "first.json", "--json").json["against"]
    first = json.loads((folder / "first.json").read_text())["lines"]
    assert [(each["size"], each["verb"], each["other"]) for each in compared] == [
        (line["size"], verb, line[verb]["median"]) for line in first for verb in ("forward", "backward")
    ]
    assert (
        "first.json has no line in common"
        in run(*argv, "-b", "32", "-e", "32", "--against", "first.json").out
    )
    assert "run line.json: must be what" in run(*argv, "--against", "line.json").err
