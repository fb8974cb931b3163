"""A rank that fails within an aggregation, or while it is connected, is named on every other rank.

==============================  ========================================================================
what                            judged by
==============================  ========================================================================
an exception in a sum or search  the notes of the exception that the caller of ``launch`` gets
a rank that is killed there     what the others wrote down
no memory for tables            the message on every rank, and the result of a second try
==============================  ========================================================================
"""

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.aggregation import connect_aggregators, contribution_exchange, extreme_kernels
from dgcl.aggregation.block import Block
from dgcl.errors import CommError
from tests.dgcl.aggregation.support_aggregator import CASE_BY_NAME, connect, dense, features
from tests.dgcl.aggregation.support_extremes import expected, reduced
from tests.samples import named


class Left(threading.local):
    """Calls that this thread may still make; at none the fault happens."""

    calls = -1


def count_calls(patch: pytest.MonkeyPatch, left: Left, happens: Callable[[], Any], *places: tuple[Any, str]):
    def counted(real: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            left.calls -= 1
            if left.calls == -1:
                happens()
            return real(*given, **options)

        return call

    for owner, name in places:
        patch.setattr(owner, name, counted(getattr(owner, name)))


AGGREGATING = [(Block, "sum"), (extreme_kernels, "extremes"), (extreme_kernels, "scatter_rows")]


def fail_at(left: Left, reduce: str, place: int, options: dict[str, Any], backward: bool):
    """The fault happens on rank 1 in its sum, or search for extremes, number ``place``."""
    comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=60.0)
    x = comm.dispatch_features(features(26, 2)).requires_grad_()
    aggregate = comm.aggregator(reduce, **options)  # type: ignore[arg-type]
    y = aggregate(x) if backward or reduce == "max" else x.sum()
    if comm.rank == 1:
        left.calls = place
    if backward:
        y.sum().backward()
    else:
        aggregate(x)
    for _ in range(3):  # ranks that need no row of rank 1's are stopped by a later call
        comm.expand(x.detach())


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "reduce, options, place",
    [
        *itertools.product(["sum"], ({"windows": 3}, {"by": "owner"}), (0, 2, 4, 6)),
        # Without windows there are four sums, the third one between the exchanges.
        *itertools.product(["sum"], [{}], (1, 2, 3)),
        *itertools.product(["max"], [{}], (0, 1)),
    ],
    ids=str,
)
def test_an_exception_is_named_on_every_rank(reduce, options, place, backward, monkeypatch):
    def happens():
        raise ZeroDivisionError("in a sum")

    count_calls(monkeypatch, left := Left(), happens, *AGGREGATING)
    with pytest.raises(ZeroDivisionError, match="in a sum") as raised:
        dgcl.launch(fail_at, 3, left, reduce, place, options, backward)
    notes = "\n".join(raised.value.__notes__)
    assert "raised on rank 1" in notes
    for rank in (0, 2):
        assert f"rank {rank}: CommError: rank {rank} stops because" in notes


def die(folder: str, backward: bool, reduce: str, options: dict[str, Any], place: int):
    with pytest.MonkeyPatch.context() as patch:
        count_calls(patch, left := Left(), lambda: os.kill(os.getpid(), signal.SIGKILL), *AGGREGATING)
        try:
            fail_at(left, reduce, place, options, backward)
        except CommError as error:
            Path(folder, f"rank-{dgcl.current_communicator().rank}").write_text(str(error))
            raise


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("how", [("sum", {"windows": 3}, 5), ("max", {}, 0)], ids=str)
def test_a_rank_that_is_killed_is_named(tmp_path, how, backward, forked_ranks):
    with pytest.raises((CommError, RuntimeError)):
        dgcl.launch(die, 3, str(tmp_path), backward, *how, ranks="processes")
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
        comm = connect(case, 3, "halo" if options else "cover", timeout=30.0)
        left.calls = 0 if comm.rank == fails_on else -1
        with pytest.raises((MemoryError, ValueError)) as raised:
            comm.aggregator(reduce, **options)
        if reduce == "max":
            return str(raised.value), reduced(comm, case, "max")["y"]
        return str(raised.value), comm.collect(
            comm.aggregator(**options)(comm.dispatch_features(features(26, 3))), None
        )

    case = CASE_BY_NAME["directed"]
    wanted = (
        expected("directed", "max")["y"] if reduce == "max" else dense(case, "sum", None) @ features(26, 3)
    )
    count_calls(monkeypatch, left := Left(), happens, place)
    for rank, (said, found) in enumerate(dgcl.launch(on_rank, 3)):
        assert said == "no memory for tables" + f", on rank {fails_on}" * (rank != fails_on)
        torch.testing.assert_close(found, wanted, equal_nan=True)
