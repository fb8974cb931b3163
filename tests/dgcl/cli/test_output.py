"""Numbers with units, aligned tables, and JSON that any reader accepts."""

import io
import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dgcl import cli
from dgcl.cli import output
from dgcl.cli.output import print_json, print_legend, print_written, step
from tests.dgcl.cli.support import Run


def test_json_takes_numpy_values(capsys):
    print_json({"a": np.int64(3), "b": np.array([1.5, 2.5]), "c": np.bool_(True), "d": None})
    assert json.loads(capsys.readouterr().out) == {"a": 3, "b": [1.5, 2.5], "c": True, "d": None}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), object()])
def test_json_refuses_what_json_has_not(value: object):
    with pytest.raises((ValueError, TypeError)):
        print_json({"a": value})


@pytest.mark.parametrize("name", ["\x1b[2J\x07\x7f", "\x9b31m", "\u202egpj", os.fsdecode(b"\xff")], ids=ascii)
def test_what_comes_from_outside_is_spelt(run: Run, folder: Path, name: str):
    for line in "check", "topo show", "partition graph.txt --ranks 2 --out":
        outcome = run(*line.split(), name)
        text = outcome.out + outcome.err
        assert repr(name)[1:-1] in text
        assert text.replace("\n", "").isprintable()


def test_commands_print_by_one_function():
    texts = {path.name: path.read_text() for path in Path(cli.__file__).parent.glob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"\bprint\(", text)] == ["output.py"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_steps_are_shown_on_terminals_alone(terminal: bool, monkeypatch):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with step("planning"):
        pass
    said = stream.getvalue()
    assert said == ("\r\x1b[Kplanning ...\r\x1b[K" if terminal else "")
    assert not [thread for thread in threading.enumerate() if thread.name == "dgcl progress"]


def test_in_a_pipe_a_long_step_says_now_and_then_what_it_does(monkeypatch):
    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            said.set()
            return super().write(text)

    said, stream = threading.Event(), Pipe()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "PIPED", 0.001)
    with step("planning"):
        assert said.wait(60)
    assert stream.getvalue().startswith("planning ... 0:00:0")


def test_a_legend_is_wrapped(capsys):
    print_legend({"halo": "rows " * 30})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ""
    assert lines[1].startswith("  halo: rows rows")
    assert all(line.startswith("    rows") and len(line) <= 100 for line in lines[2:])


def test_files_that_were_written_are_confirmed(capsys):
    print_written(("plan", "p.npz"), ("relation", None))
    assert capsys.readouterr().out == "plan written to p.npz\n"
