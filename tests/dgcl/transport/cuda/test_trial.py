"""The trial of devices in processes of their own: how it ends, and what it notices."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import dgcl
from dgcl.ranks.context import context
from dgcl.ranks.thread_control import ThreadControl
from dgcl.transport.cuda import trial
from dgcl.transport.cuda.trial_process import KINDS, wrong_rows
from tests.support.plans import random_world
from tests.support.ranks import on_threads
from tests.support.samples import slow

DEVICE = SimpleNamespace(
    problem="",
    name="GPU-1",
    uuid="1",
    index=0,
    driver=SimpleNamespace(compute_mode=lambda index: 0),
    tensors=SimpleNamespace(device="cpu"),
)
#: What a rank's process does, and what all ranks say of it; it notes in a file that it was started.
ENDS = {
    "well": ("", ""),
    "wrong rows": ("raise ValueError('other rows')", r"rank 1: ValueError: other rows \(exit code 1\)"),
    "killed": ("os.kill(os.getpid(), 9)", r"rank 1: it said nothing \(exit code -9\)"),
    "hangs": ("time.sleep(60)", "rank 1: .* timed out after 4.0 seconds"),
    "ends itself": (
        "faulthandler.dump_traceback_later(0.1, exit=True); time.sleep(60)",
        r"rank 1: Timeout \(0:00:00.1.*exit code 1",
    ),
}


@pytest.fixture
def processes(monkeypatch, tmp_path):
    """Ranks that are threads pass for processes; their trials are stored in a folder of the test."""
    monkeypatch.setattr(trial, "GroupControl", ThreadControl)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def try_twice() -> list[str]:
    return [trial.failed_trial(context.require_control(), DEVICE) for _ in range(2)]


@pytest.mark.parametrize("end", ["well", "wrong rows", "killed", "ends itself", slow("hangs")])
@pytest.mark.usefixtures("processes")
def test_how_a_process_ends(end: str, monkeypatch, tmp_path):
    """All ranks hear of one that fails; what went well is not tried again."""
    deed, message = ENDS[end]
    started = tmp_path / "started"
    text = (
        f"import faulthandler, os, time; open({str(started)!r}, 'a').write('.')\n"
        f"if os.environ['RANK'] == '1': {deed or 'pass'}"
    )
    monkeypatch.setattr(trial, "_COMMAND", (sys.executable, "-c", text))
    if end == "hangs":
        monkeypatch.setattr(trial, "_SECONDS", 4.0)
    for reasons in dgcl.launch(try_twice, 2):
        for reason in reasons:
            assert re.search(message, reason) if message else not reason
    assert len(started.read_text()) == (2 if end == "well" else 4)


@pytest.mark.usefixtures("processes")
def test_a_cache_that_is_out_of_reach_keeps_nothing(monkeypatch):
    def denied(*args: object, **keywords: object):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(trial, "_COMMAND", (sys.executable, "-c", ""))
    monkeypatch.setattr(Path, "stat", denied)
    monkeypatch.setattr(Path, "mkdir", denied)
    assert dgcl.launch(try_twice, 2) == [["", ""]] * 2


def test_ranks_that_have_no_such_memory_are_not_tried(monkeypatch):
    monkeypatch.setattr(trial, "_COMMAND", ("no such program",))
    assert dgcl.launch(try_twice, 2) == [["", ""]] * 2


@pytest.mark.parametrize("rank", [0, 2])
def test_other_rows_are_noticed(rank: int):
    """A byte more in one row of one rank, which only an expand brings."""

    def work(comm):
        expand = comm.transport.expand

        def wrong(rows, exchange=0):
            out = expand(rows, exchange)
            if rows.dtype == torch.int16:
                out[-1, -1] += 1
            return out

        if comm.rank == rank:
            comm.transport.expand = wrong
        return wrong_rows(comm, "cpu", 1)

    expected = [["int16 (3,)"] if each == rank else [] for each in range(3)]
    assert on_threads(random_world(3, 3, "random-1"), work) == expected
    assert ("int16", (3,)) in KINDS


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_processes_on_the_cpu(tmp_path):
    """The very command, of two ranks, without a device."""
    assert dgcl.launch(try_twice, 2) == [["", ""]] * 2
    assert len(list(Path(tmp_path, "dgcl").glob("devices-*"))) == 1
