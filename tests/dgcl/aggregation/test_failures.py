"""A rank that fails within an aggregation, or while it is connected, is named on every other rank.

================================  ======================================================================
what                              judged by
================================  ======================================================================
an exception in a sum or search   the notes of the exception that the caller of ``launch`` gets
a rank that is killed or stopped  what the others wrote down
no memory for tables              the message on every rank, and the result of a second try
================================  ======================================================================
"""

import itertools
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.aggregation import connect_aggregators, contribution_exchange
from dgcl.errors import CommError
from tests.dgcl.aggregation.support_failures import Fault, fail_at
from tests.support.aggregator import CASE_BY_NAME, connect, dense, features
from tests.support.extreme_sums import expected, reduced
from tests.support.samples import named


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "reduce, options, place, calls_before",
    [
        *itertools.product(["sum"], ({"windows": 3}, {"by": "owner"}), (0, 2, 4, 6), [0]),
        # Without windows there are four sums, the third one between the exchanges.
        *itertools.product(["sum"], [{}], (1, 2, 3), [0]),
        *itertools.product(["max"], [{}], (0, 1), [0]),
        *itertools.product(["sum"], [{"windows": 3}], (0, 4), [3]),
        ("sum", {}, 2, 3),
    ],
    ids=str,
)
def test_an_exception_is_named_on_every_rank(reduce, options, place, calls_before, backward, monkeypatch):
    def happens():
        raise ZeroDivisionError("in a sum")

    fault = Fault(happens, monkeypatch)
    with pytest.raises(ZeroDivisionError, match="in a sum") as raised:
        dgcl.launch(fail_at, 3, fault, reduce, options, place, backward, calls_before)
    notes = "\n".join(raised.value.__notes__)
    assert "raised on rank 1" in notes
    for rank in (0, 2):
        told = rf"rank {rank}: CommError: rank {rank} stops because .*rank 1: stopped by ZeroDivisionError"
        assert re.search(told, notes)


def end(folder: str, backward: bool, how: str, *where: Any):
    """Rank 1 is killed, or stopped for longer than the timeout; the others write down what they are told."""

    def happens():
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.MonkeyPatch.context() as patch:
        try:
            timeout = 60.0 if how == "killed" else 3.0
            fail_at(Fault(happens, patch), *where[:3], backward, where[3], timeout)
        except CommError as error:
            Path(folder, f"rank-{dgcl.current_communicator().rank}").write_text(str(error))
            raise


@pytest.mark.slow
@pytest.mark.parametrize(
    "backward, where",
    [
        *itertools.product(
            (False, True),
            [
                ("killed", "sum", {"windows": 3}, 5, 0),
                ("killed", "sum", {"windows": 3}, 4, 3),
                ("killed", "max", {}, 0, 0),
            ],
        ),
        (False, ("stopped", "sum", {"windows": 3}, 4, 3)),
    ],
    ids=str,
)
def test_a_rank_that_ends_is_named(tmp_path, backward, where, forked_ranks):
    with pytest.raises((CommError, RuntimeError)):
        dgcl.launch(end, 3, str(tmp_path), backward, *where, ranks="processes")
    for rank in (0, 2):
        assert "rank 1" in Path(tmp_path, f"rank-{rank}").read_text()


@named(
    "reduce, options, place, fails_on",
    {
        "windows": ("sum", {"windows": 3}, (connect_aggregators, "halo_windows"), 1),
        "programs of windows": ("sum", {"windows": 3}, (connect_aggregators, "window_programs"), 1),
        "program": ("max", {}, (contribution_exchange, "contribution_program"), 0),
        "rows": ("max", {}, (contribution_exchange, "contribution_rows"), 1),
    },
)
def test_a_rank_without_memory_is_named_and_may_try_again(reduce, options, place, fails_on, monkeypatch):
    def happens():
        raise MemoryError("no memory for tables")

    def on_rank() -> tuple[str, Tensor]:
        comm = connect(case, 3, "cover" if reduce == "max" else "halo", timeout=30.0)
        fault.left = 0 if comm.rank == fails_on else -1
        with pytest.raises((MemoryError, ValueError)) as raised:
            comm.aggregator(reduce, **options)
        if reduce == "max":
            return str(raised.value), reduced(comm, case, "max")["y"]
        found = comm.aggregator(**options)(comm.dispatch_features(features(26, 3)))
        return str(raised.value), comm.collect(found, None)

    case = CASE_BY_NAME["directed"]
    wanted = (
        expected("directed", "max")["y"] if reduce == "max" else dense(case, "sum", None) @ features(26, 3)
    )
    fault = Fault(happens, monkeypatch, [place])
    for rank, (said, found) in enumerate(dgcl.launch(on_rank, 3)):
        assert said == "no memory for tables" + f", on rank {fails_on}" * (rank != fails_on)
        torch.testing.assert_close(found, wanted, equal_nan=True)
