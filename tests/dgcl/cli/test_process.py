"""The command as a process: how it starts, what it loads, and how it ends when others end it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dgcl.cli import main

COMMAND = [sys.executable, "-m", "dgcl"]


def test_module_and_status(folder: Path):
    good = subprocess.run([*COMMAND, "topo", "show", "line.json"], capture_output=True, text=True)
    assert (good.returncode, good.stderr) == (0, "")
    bad = subprocess.run([*COMMAND, "topo", "show", "nothing.json"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("dgcl topo show: ")
    assert "nothing.json" in bad.stderr
    assert bad.stderr.count("\n") == 1


@pytest.mark.parametrize("argv", [["topo", "show", "dgx1"], ["info"], ["--help"], ["plan", "--help"]])
def test_verb_loads_only_what_it_needs(argv: list[str]):
    code = (
        "import sys\nfrom dgcl.cli import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'numba', 'scipy', 'highspy', 'matplotlib', 'pymetis', 'kaminpar')\n"
        "print(*[m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.split() == []


def test_reader_that_leaves(folder: Path):
    """`dgcl ... | head -1`: the pipe is closed before anything is written to it."""
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run([*COMMAND, "topo", "show", "dgx1"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (run.returncode, run.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk_behind_standard_output():
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [*COMMAND, "topo", "show", "dgx1"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert run.returncode == 2
    assert run.stderr == "dgcl topo show: No space left on device\n"


def test_interrupt_of_a_process(folder: Path):
    """Ctrl-C ends a command that reads a pipe that nobody fills."""
    os.mkfifo(folder / "pipe.json")
    slow = (
        "import sys, dgcl.topology\nfrom dgcl.cli import main\n"
        "dgcl.topology.resolve_topology = lambda spec, devices: open(spec).read()\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow, "topo", "show", "pipe.json"], stderr=subprocess.PIPE, text=True
    )
    # A reader is in the way of opening the other end without waiting until it is really there.
    deadline = time.monotonic() + 240
    writer = None
    while writer is None and time.monotonic() < deadline:
        try:
            writer = os.open(folder / "pipe.json", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
    assert writer is not None
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)
        try:  # a signal between Python's last look and the system call is not heard before the call ends
            _, err = process.communicate(timeout=20)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        process.kill()
        pytest.fail("it goes on reading")
    os.close(writer)
    assert (process.returncode, err) == (130, "dgcl topo show: interrupted\n")


def test_interrupt_leaves_no_file(folder: Path, monkeypatch, capsys):
    before = set(folder.iterdir())

    def interrupt(*_: object):
        raise KeyboardInterrupt

    from dgcl.planner import Plan

    monkeypatch.setattr(Plan, "save", interrupt)
    assert main(["plan", "graph.npz", "--topology", "line.json", "--out", "plan.npz"]) == 130
    assert capsys.readouterr().err == "dgcl plan: interrupted\n"
    assert set(folder.iterdir()) == before
