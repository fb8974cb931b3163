"""What of gpu-check needs no GPU: time limits, the report, refusing, and conversations of two processes."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dgcl.gpu_check.__main__ import main
from dgcl.gpu_check.pair import Channel, Peer, parent
from dgcl.gpu_check.parts import SECONDS, TESTS, Outcome, Part, parts, run_part
from dgcl.gpu_check.probes import PROBES
from dgcl.gpu_check.report import read_report, render, write_report
from dgcl.gpu_check.sections import SECTIONS
from dgcl.gpu_check.sections import main as run_section

ROOT = Path(__file__).resolve().parents[3]


def part(code: str) -> Part:
    return Part("some", "Some part", 60, (sys.executable, "-c", code))


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("print('fine')", "good", "fine\n"),
        ("print('first'); raise SystemExit(3)", "bad", "first\n"),
        ("import sys; sys.stderr.write('why'); sys.exit(1)", "bad", "why"),
    ],
    ids=["good", "bad", "stderr"],
)
def test_a_part_is_good_when_it_says_so(code: str, status: str, text: str, tmp_path: Path) -> None:
    outcome = run_part(part(code), 60, False, tmp_path)
    assert (outcome.status, outcome.text) == (status, text)


@pytest.mark.slow
def test_a_part_that_hangs_is_stopped_with_its_children_and_keeps_what_it_said(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = (
        f"import time, pathlib; [(pathlib.Path({str(mark)!r}).touch(), time.sleep(.05)) for _ in range(1200)]"
    )
    code = (
        "import subprocess, sys, time; print('started', flush=True); "
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    outcome = run_part(part(code), 6, False, tmp_path / "parts")
    assert outcome.status == "cut short"
    assert not outcome.has_ended
    assert outcome.text.startswith("started\n")
    assert "in <module>" in outcome.text, "it does not say where it hung"
    assert (tmp_path / "parts" / "some.txt").read_text() == outcome.text
    time.sleep(0.3)
    mark.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not mark.exists(), "a child runs on"


def test_a_part_that_has_its_whole_time_is_not_begun_again(tmp_path: Path) -> None:
    slow = Part("slow", "Slow part", 0.5, (sys.executable, "-c", "import time; time.sleep(60)"))
    outcome = run_part(slow, 0.5, False, tmp_path)
    assert outcome.status == "out of time"
    assert outcome.has_ended


def test_a_part_has_the_environment_that_it_asks_for(tmp_path: Path) -> None:
    code = "import os; print(os.environ['DGCL_WORD'], os.environ['PYTHONFAULTHANDLER'])"
    asking = Part("some", "Some part", 60, (sys.executable, "-c", code), (("DGCL_WORD", "said"),))
    assert run_part(asking, 60, False, tmp_path).text == "said 1\n"


def test_a_section_leaves_its_findings(tmp_path: Path) -> None:
    outcome = run_part(Part("environment", "Machine", 60), 60, True, tmp_path)
    assert outcome.status == "good", outcome.text
    version = importlib.metadata.version("torch")
    assert outcome.found["torch"] == version
    assert f"- torch: {version}" in outcome.text


def test_report_names_the_device_and_what_was_left_out() -> None:
    outcomes = [
        Outcome(Part("rows", "Row kernels", 9), "good", 4.4, "| a | b |\n", [1]),
        Outcome(part(""), "bad", 1.0, "Traceback", None),
        Outcome(Part("variants", "Variants", 9), "left out", 0.0, "", None),
    ]
    assert render(outcomes, "NVIDIA Example") == (
        "# gpu-check on NVIDIA Example\n\n"
        "| part | | seconds |\n| --- | --- | ---: |\n"
        "| Row kernels | good | 4 |\n| Some part | bad | 1 |\n| Variants | left out | 0 |\n\n"
        "## Row kernels\n\n| a | b |\n\n"
        "## Some part\n\n```\nTraceback\n```\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses_and_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path / "out")]) == 2
    assert (
        "sees no CUDA device; this needs an NVIDIA GPU, its driver, and a CUDA build"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "rows,nonsense"])
    assert "--only: unknown nonsense" in capsys.readouterr().err


def test_parts_run_within_the_time_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dgcl.gpu_check.__main__.find_device", lambda: "NVIDIA Example")
    made = [part("print(1)"), Part("other", "Other part", 60, (sys.executable, "-c", "raise SystemExit(1)"))]
    monkeypatch.setattr("dgcl.gpu_check.__main__.parts", lambda: made)
    assert main(["--output", str(tmp_path), "--only", "some"]) == 0
    assert main(["--output", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert report["device"] == "NVIDIA Example"
    assert [(row["name"], row["status"]) for row in report["parts"]] == [("some", "good"), ("other", "bad")]
    assert "| Other part | bad |" in (tmp_path / "gpu-report.md").read_text()
    assert main(["--output", str(tmp_path), "--seconds", "1"]) == 1
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert {row["status"] for row in report["parts"]} == {"left out"}
    assert "some: good" in capsys.readouterr().out


def test_a_later_call_runs_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dgcl.gpu_check.__main__.find_device", lambda: "NVIDIA Example")
    mark = tmp_path / "ran"
    count = f"open({str(mark)!r}, 'a').write('x')"
    names = ("first", "second", "third")
    made = [Part(name, name, 60, (sys.executable, "-c", count)) for name in names]
    monkeypatch.setattr("dgcl.gpu_check.__main__.parts", lambda: made)
    folder = ["--output", str(tmp_path)]
    assert main([*folder, "--only", "second"]) == 0
    assert main([*folder, "--resume", "--without", "third"]) == 0
    assert mark.read_text() == "xx", "what had ended was run again"
    assert main([*folder, "--resume", "--seconds", "0"]) == 1  # the third is left out
    assert main([*folder, "--resume"]) == 0
    assert mark.read_text() == "xxx"
    assert main([*folder, "--resume", "--only", "second"]) == 0
    assert mark.read_text() == "xxxx", "what is asked for by name is run again"
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert [row["name"] for row in report["parts"]] == list(names)
    monkeypatch.setattr("dgcl.gpu_check.__main__.find_device", lambda: "another")
    assert main([*folder, "--resume"]) == 0
    assert mark.read_text() == "xxxxxxx", "another device is another report"


def test_a_run_that_is_killed_leaves_what_it_found(tmp_path: Path) -> None:
    """As it is while the second part runs."""
    made = [Part("first", "First part", 60, ("x",)), Part("second", "Second part", 60)]
    outcomes = [
        Outcome(made[0], "good", 1.0, "found\n", {"a": 1}),
        Outcome(made[1], "running", 0.0, "", None),
    ]
    write_report(tmp_path, outcomes, "NVIDIA Example")
    assert "| Second part | running | 0 |" in (tmp_path / "gpu-report.md").read_text()
    again = read_report(tmp_path, made, "NVIDIA Example")
    assert list(again.values()) == outcomes
    assert [outcome.has_ended for outcome in again.values()] == [True, False]
    assert read_report(tmp_path, made[:1], "NVIDIA Example").keys() == {"first"}
    assert read_report(tmp_path, made, "another") == {}
    (tmp_path / "gpu-report.json").write_text("{")
    assert read_report(tmp_path, made, "NVIDIA Example") == {}


def test_limits_fit_the_time_for_everything() -> None:
    made = [*parts(), Part("sanitizer", "", 50)]
    assert sum({part.name: part.seconds for part in made}.values()) <= SECONDS


def test_every_part_exists() -> None:
    sections = {each.name for each in parts() if not each.command}
    assert sections == set(SECTIONS)
    assert {name.removeprefix("probe-") for name in sections if name.startswith("probe-")} == set(PROBES)
    assert all((ROOT / path).is_file() for path in TESTS)


def test_sections_print_as_they_go(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_section(["environment", "--json", str(tmp_path / "found")]) == 0
    assert json.loads((tmp_path / "found").read_text())["good"] is True
    assert "- python: " in capsys.readouterr().out


def test_two_processes_talk(tmp_path: Path) -> None:
    with Peer("tests.dgcl.gpu_check.echo", "x") as peer:
        for value in ({"a": [1, None]}, 7, "text\nwith lines"):
            peer.send(value)
            assert peer.receive() == ["x", value]


def test_a_peer_that_leaves_is_noticed() -> None:
    with Peer("tests.dgcl.gpu_check.echo", "leave") as peer, pytest.raises(EOFError, match="is gone"):
        peer.receive()


def test_a_peer_does_not_outlive_its_probe() -> None:
    with pytest.raises(KeyboardInterrupt), Peer("tests.dgcl.gpu_check.echo", "x") as peer:
        raise KeyboardInterrupt
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(peer.pid)], capture_output=True, text=True)
    assert listed.stdout.strip() == ""


def test_channels_skip_what_is_no_value() -> None:
    import io

    written = io.StringIO()
    Channel(io.StringIO(), written).send([1])
    noisy = io.StringIO("[W1120] some library\n" + written.getvalue())
    assert Channel(noisy, written).receive() == [1]
    assert isinstance(parent(), Channel)
