"""The runner of gpu-check without a GPU: time limits, the report, resuming, refusing; a part of pytest's on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.gpu.__main__ import find_device, main
from tests.gpu.parts import SECONDS, Outcome, Part, compiled_mark, parts, run_part
from tests.gpu.report import read_report, render, write_report
from tests.gpu.second_process import Pipe, second_process
from tests.gpu.test_device import software

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class CodePart(Part):
    """A part that runs some Python instead of tests."""

    @property
    def command(self) -> tuple[str, ...]:
        return sys.executable, "-c", *self.tests


def part(code: str, name: str = "some", seconds: float = 60) -> Part:
    return CodePart(name, f"shows {name}", seconds, (code,))


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
    assert (outcome.status, outcome.text) == (status, f"some: shows some\n{text}")


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
    assert outcome.status == "out of time"
    assert not outcome.has_ended
    assert outcome.text.startswith("some: shows some\nstarted\n")
    assert "in <module>" in outcome.text, "it does not say where it hung"
    assert (tmp_path / "parts" / "some.txt").read_text() == outcome.text
    time.sleep(0.3)
    mark.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not mark.exists(), "a child runs on"


def test_a_part_has_the_environment_that_it_asks_for(tmp_path: Path) -> None:
    code = "import os; print(os.environ['DGCL_WORD'], os.environ['PYTHONFAULTHANDLER'])"
    asking = CodePart("some", "shows some", 60, (code,), (("DGCL_WORD", "said"),))
    assert run_part(asking, 60, False, tmp_path).text.endswith("\nsaid 1\n")


def test_findings_are_read_line_by_line(tmp_path: Path) -> None:
    code = "import os; open(os.environ['DGCL_GPU_FINDINGS'], 'w').write('{\"a\": 1}\\n[2]\\n')"
    assert run_part(part(code), 60, False, tmp_path).found == [{"a": 1}, [2]]
    assert run_part(part("pass"), 60, False, tmp_path).found == []


@pytest.mark.slow
def test_a_part_of_tests_runs_by_pytest(tmp_path: Path) -> None:
    """Here nothing is marked for a GPU but skips; the case behind it is what says so."""
    chosen = Part("some", "shows some", 120, ("tests/gpu/test_device.py::test_environment",))
    outcome = run_part(chosen, 120, True, tmp_path)
    assert outcome.status == "good", outcome.text
    wanted = "1 passed" if torch.cuda.is_available() else "needs a CUDA device"
    assert wanted in outcome.text


def test_report_names_the_device_and_what_was_left_out() -> None:
    outcomes = [
        Outcome(part("", "rows"), "good", 4.4, "| a | b |\n", [1]),
        Outcome(part("", "bench"), "left out", 0.0, "", []),
    ]
    assert render(outcomes, "NVIDIA Example") == (
        "# gpu-check on NVIDIA Example\n\n"
        "| part | what it shows | | seconds |\n| --- | --- | --- | ---: |\n"
        "| rows | shows rows | good | 4 |\n| bench | shows bench | left out | 0 |\n\n"
        "## rows\n\n```\n| a | b |\n```\n"
    )


def test_a_python_without_pytest_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.__main__.find_spec", lambda name: None if name == "pytest" else name)
    with pytest.raises(
        RuntimeError, match=r"lacks pytest: install them \(.* -m pip install pytest\), or name"
    ):
        find_device()


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
    monkeypatch.setattr("tests.gpu.__main__.find_device", lambda: "NVIDIA Example")
    made = [part("print(1)"), part("raise SystemExit(1)", "other")]
    monkeypatch.setattr("tests.gpu.__main__.parts", lambda: made)
    assert main(["--output", str(tmp_path), "--only", "some"]) == 0
    assert main(["--output", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert report["device"] == "NVIDIA Example"
    assert [(row["name"], row["status"]) for row in report["parts"]] == [("some", "good"), ("other", "bad")]
    assert "| other | shows other | bad |" in (tmp_path / "gpu-report.md").read_text()
    assert main(["--output", str(tmp_path), "--seconds", "1"]) == 1
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert {row["status"] for row in report["parts"]} == {"left out"}
    assert "some: good" in capsys.readouterr().out


def test_a_later_call_runs_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.gpu.__main__.find_device", lambda: "NVIDIA Example")
    mark = tmp_path / "ran"
    count = f"open({str(mark)!r}, 'a').write('x')"
    names = ("first", "second", "third")
    made = [part(count, name) for name in names]
    monkeypatch.setattr("tests.gpu.__main__.parts", lambda: made)
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
    monkeypatch.setattr("tests.gpu.__main__.find_device", lambda: "another")
    assert main([*folder, "--resume"]) == 0
    assert mark.read_text() == "xxxxxxx", "another device is another report"


def test_a_part_that_ran_out_of_time_runs_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.gpu.__main__.find_device", lambda: "NVIDIA Example")
    monkeypatch.setattr("tests.gpu.__main__._LEAST", 0.0)
    monkeypatch.setattr("tests.gpu.parts._STACK_SECONDS", 0.2)
    mark = tmp_path / "may end"
    code = f"import pathlib, time; pathlib.Path({str(mark)!r}).exists() or time.sleep(300)"
    monkeypatch.setattr("tests.gpu.__main__.parts", lambda: [part(code, seconds=0.3)])
    assert main(["--output", str(tmp_path)]) == 1
    assert "some: out of time" in capsys.readouterr().out
    mark.touch()
    monkeypatch.setattr("tests.gpu.__main__.parts", lambda: [part(code)])
    assert main(["--output", str(tmp_path), "--resume"]) == 0


def test_the_host_is_compiled_again_on_a_fresh_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    outcome = run_part(part("pass", "compile"), 60, False, tmp_path / "parts")
    assert outcome.has_ended
    compiled_mark().unlink()
    assert not outcome.has_ended


def test_a_run_that_is_killed_leaves_what_it_found(tmp_path: Path) -> None:
    """As it is while the second part runs."""
    made = [part("", "first"), part("", "second")]
    outcomes = [
        Outcome(made[0], "good", 1.0, "found\n", [{"a": 1}]),
        Outcome(made[1], "running", 0.0, "", []),
    ]
    write_report(tmp_path, outcomes, "NVIDIA Example")
    assert "| second | shows second | running | 0 |" in (tmp_path / "gpu-report.md").read_text()
    again = read_report(tmp_path, made, "NVIDIA Example")
    assert list(again.values()) == outcomes
    assert [outcome.has_ended for outcome in again.values()] == [True, False]
    assert read_report(tmp_path, made[:1], "NVIDIA Example").keys() == {"first"}
    assert read_report(tmp_path, made, "another") == {}
    (tmp_path / "gpu-report.json").write_text("{")
    assert read_report(tmp_path, made, "NVIDIA Example") == {}


def test_limits_fit_the_time_for_everything() -> None:
    made = [*parts(), part("", "sanitizer", 50)]
    assert sum({each.name: each.seconds for each in made}.values()) <= SECONDS


@pytest.mark.slow
def test_parts_select_tests_that_exist_and_every_gpu_test_of_the_folder() -> None:
    names = [name for each in parts() if not each.prefix for name in each.tests]
    files = sorted({name.split("::")[0] for name in names} | {"tests/gpu"})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", *files]
    environment = os.environ | {"PYTEST_ADDOPTS": ""}  # what a caller adds may change what is printed
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    collected = run.stdout.splitlines()
    assert [name for name in names if not any(line.startswith(name) for line in collected)] == []
    found = [line for line in collected if line.startswith("tests/gpu/")]
    assert len(found) > 20
    assert [line for line in found if not line.startswith(tuple(names))] == []


def test_the_first_parts_compile_nothing_of_the_host() -> None:
    names = [each.name for each in parts()]
    assert names[:8] == ["right", "environment", "driver", "kernels", "ipc", "flags", "rows", "compile"]


@pytest.mark.slow
def test_what_the_first_part_needs_of_the_host_is_one_compiled_loop(tmp_path: Path) -> None:
    """With no cache at all, as on a machine that has just been lent."""
    code = """
from tests.gpu import test_rows
from tests.kernels.test_cuda_driver import FakeLibrary
from dgcl.kernels.cuda_catalogue import catalogue
from dgcl.kernels.cuda_driver import Driver
from dgcl.kernels.cuda_launch import Kernels, Prepared
driver = Driver(FakeLibrary())
prepared = Prepared(driver)
prepared.launch(Kernels(driver, 0)["signal_wait"], 1, 32, 64, *[0] * 10)
prepared.enqueue([1])
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=environment)
    assert {path.name.split("-")[0] for path in tmp_path.rglob("*.kernel")} == {"cuda_enqueue.enqueue"}


def test_the_software_is_named() -> None:
    assert software()["torch"] == torch.__version__


def _answer(pipe: Pipe) -> None:
    pipe.send(["heard", pipe.receive()])


def _leave(pipe: Pipe) -> None:
    pass


def _stay(pipe: Pipe) -> None:
    time.sleep(60)


@pytest.mark.slow
def test_two_processes_talk() -> None:
    with second_process(_answer) as pipe:
        pipe.send({"a": [1, None]})
        assert pipe.receive() == ["heard", {"a": [1, None]}]


@pytest.mark.slow
def test_a_process_that_leaves_is_noticed() -> None:
    with second_process(_leave) as pipe, pytest.raises(EOFError):
        pipe.receive()


def test_the_second_process_does_not_outlive_a_test() -> None:
    import multiprocessing

    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt), second_process(_stay):
        raise KeyboardInterrupt
    assert set(multiprocessing.active_children()) <= before
