"""`dgcl simulate`: a plan that can be played by hand."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from dgcl.cli.simulate import ORDERS
from dgcl.planner.simulator.event_simulator import Order
from tests.dgcl.cli.support import LINE, Run

ROW = 4e9 / 1000  # bytes that a wire of the line (4 GB/s) carries in a millisecond


@pytest.fixture
def two_hops(run: Run, folder: Path) -> Path:
    """One row of rank 0 for rank 2, which must pass through rank 1: a millisecond on each of two wires."""
    classes = {"source": np.int32([0]), "dests": np.uint64([[4]]), "count": np.int64([1])}
    np.savez(folder / "r.npz", world_size=3, **classes)
    argv = f"plan --relation r.npz --topology line.json --row-bytes {int(ROW)} --out p.npz"
    assert run(*argv.split()).status == 0
    return folder / "p.npz"


@pytest.mark.parametrize(
    "options, milliseconds",
    [
        ("", 2.0),
        ("--order barrier", 2.0),
        (f"--row-bytes {int(ROW) // 2}", 1.0),
        ("--slow 2:3", 4.0),
        ("--late 0:0.005", 7.0),
        ("--late 0:0.005 --slow 2:3", 9.0),
        ("--topology fast.json", 1.0),
    ],
)
def test_times(run: Run, folder: Path, two_hops: Path, options: str, milliseconds: float):
    twice = [{**connection, "bandwidth": 8.0} for connection in LINE["connections"]]
    (folder / "fast.json").write_text(json.dumps({**LINE, "connections": twice}))
    played = run("simulate", two_hops, *options.split(), "--json").json
    assert played["seconds"] == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    "kind, options, settings",
    [
        ("NV1", "", ("neighbours", "bytes", None)),
        ("DRAM", "", ("neighbours", "equal", 1)),
        ("core", "", ("eager", "equal", 1)),
        ("core", "--order barrier --shares bytes --sends-at-once 2", ("barrier", "bytes", 2)),
    ],
)
def test_ranks_send_as_those_of_the_machine_do(
    run: Run, folder: Path, two_hops: Path, kind: str, options: str, settings: tuple[str, str, int | None]
):
    wires = [{**connection, "kind": kind} for connection in LINE["connections"]]
    (folder / "kind.json").write_text(json.dumps({**LINE, "connections": wires}))
    played = run("simulate", two_hops, "--topology", "kind.json", *options.split(), "--json").json
    assert (played["order"], played["shares"], played["sends_at_once"]) == settings


def test_json(run: Run, two_hops: Path):
    played = run("simulate", two_hops, "--json").json
    assert played["predicted_seconds"] == pytest.approx(0.002)
    assert played["num_messages"] == 2
    assert played["bytes_sent"] == 2 * ROW
    assert [rank["finish_seconds"] for rank in played["ranks"]] == pytest.approx([0.001, 0.002, 0.002])
    # Rank 1 waits for the row that it passes on, rank 2 for that row all the time.
    assert [rank["wait_seconds"] for rank in played["ranks"]] == pytest.approx([0, 0.001, 0.002])
    assert sorted(connection["bytes"] for connection in played["connections"]) == [ROW, ROW]


def test_text_and_trace(run: Run, folder: Path, two_hops: Path):
    outcome = run("simulate", two_hops, "--trace", "trace.json")
    assert outcome.status == 0
    assert "2 ms" in outcome.out
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert [bar["ts"] for bar in bars] == pytest.approx([0, 1000])
    assert [bar["dur"] for bar in bars] == pytest.approx([1000, 1000])


def test_plan_that_lies_is_not_played(run: Run, two_hops: Path):
    with np.load(two_hops) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"])) | {"seed": 99}
    np.savez(two_hops, **{**arrays, "meta": np.array(json.dumps(meta))})
    outcome = run("simulate", two_hops)
    assert outcome.status == 2
    assert "fingerprint" in outcome.err


def test_nothing_to_send(run: Run, folder: Path):
    run("plan", "graph.npz", "--topology", "uniform:1", "--out", "p.npz")
    assert run("simulate", "p.npz", "--json").json["seconds"] == 0
    assert run("simulate", "p.npz").status == 0


def test_orders_are_those_of_the_simulator():
    assert set(ORDERS) == set(get_args(Order))
