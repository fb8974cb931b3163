"""`dgcl topo calibrate`: a topology file with what was measured in it, whatever the figures are."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import dgcl
from dgcl.calibration import timing
from dgcl.calibration.timing import Effort
from dgcl.cli import main
from dgcl.ranks.context import context
from dgcl.topology import load_topology
from tests.dgcl.cli.support import Run
from tests.support.rank_pool import RankPool

COMMAND = "topo calibrate --threads"
LEAST = Effort(0.0, least=1, most=1, rounds=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch):
    """One call for each measurement."""
    monkeypatch.setattr(timing, "Effort", lambda: LEAST)
    monkeypatch.setattr(timing, "_FLUSH", 1 << 20)


@pytest.mark.usefixtures("quick", "folder")
def test_text_and_file(run: Run):
    outcome = run(*COMMAND.split(), "--out", "t.json")
    assert outcome.status == 0
    assert outcome.out.startswith("host2, CPU ranks, rows of 512 bytes; the fit is within ")
    for wanted in ("senders", "decided", "written to t.json"):
        assert wanted in outcome.out
    topology, about = load_topology("t.json"), json.loads(Path("t.json").read_text())["about"]
    assert [device.name for device in topology.devices] == ["rank0", "rank1"]
    told = about["calibration"]
    assert (told["ranks"], told["device"], told["row_bytes"]) == (2, "cpu", 512)
    assert all(one["seconds"] > 0 for one in told["measured"])
    # A calibrated file is a topology like any other.
    assert "\nhost2: 2 devices" in run("topo", "show", "t.json").out
    again = run(*COMMAND.split(), "--topology", "t.json", "--json").json
    assert [c["name"] for c in again["connections"]] == [c.name for c in topology.connections]


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "folder")
def test_json_is_the_file(run: Run):
    outcome = run(*COMMAND.split(), "--ranks", "3", "--row-bytes", "64", "--out", "t.json", "--json")
    assert outcome.json["about"]["calibration"]["ranks"] == 3
    assert outcome.json == json.loads(Path("t.json").read_text(encoding="utf-8"))
    assert {row["senders"] for row in outcome.json["about"]["calibration"]["contention"]} == {1, 2, 3}


@pytest.mark.usefixtures("folder")
def test_a_lost_rank_is_one_line(run: Run, monkeypatch):
    def lost(*args: object):
        raise dgcl.CommError("rank 1 died (exit code -9)")

    monkeypatch.setattr("dgcl.calibration.run.run_on_host", lost)
    outcome = run(*COMMAND.split(), "--out", "t.json")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == "dgcl topo calibrate: rank 1 died (exit code -9)\n"
    assert not Path("t.json").exists()


def test_the_job_has_its_ranks(run: Run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    outcome = run("topo", "calibrate", "--ranks", "2")
    assert outcome.status == 2
    assert "the job has 4 ranks already" in outcome.err


def calibrated_in_a_job(out: str) -> tuple[int, str]:
    """What a rank of a job ends with and prints."""
    control = context.require_control()
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("RANK", str(control.rank))
        patch.setenv("WORLD_SIZE", str(control.world_size))
        patch.setattr(timing, "Effort", lambda: LEAST)
        patch.setattr(timing, "_FLUSH", 1 << 20)
        status = main(["topo", "calibrate", "--out", out])
    return status, printed.getvalue()


@pytest.mark.slow
def test_in_a_job(tmp_path, rank_pool: Callable[[int], RankPool]):
    """Only rank 0 writes."""
    out = tmp_path / "t.json"
    (status, printed), others = rank_pool(2).run(calibrated_in_a_job, str(out))
    assert status == 0
    assert printed.count("decided") == 1
    assert others == (0, "")
    assert load_topology(out).num_devices == 2
