"""What planning needs last is compiled beside it: when, for how long, and for the types that a plan has."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from dgcl.cli import ahead
from dgcl.planner import PlanOptions
from dgcl.planner.column_generation.dual_bound.steiner_trees import run_free_rounds
from dgcl.planner.column_generation.improvement.exchange import exchange
from dgcl.planner.column_generation.search.compile_ahead import compile_bound_and_exchange
from dgcl.planner.methods import make_plan
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import resolve_topology


@pytest.mark.parametrize(
    ("cores", "compiled", "starts"),
    [
        pytest.param(2, False, True, id="nothing on disk"),
        pytest.param(2, True, False, id="all on disk"),
        pytest.param(1, False, False, id="one core"),
    ],
)
@pytest.mark.parametrize("fails", [False, True], ids=["planned", "error"])
def test_a_second_process_compiles(
    cores: int, compiled: bool, starts: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def sleeping(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[1:] == ["-m", "dgcl", "warmup", "search"]
        started.append(popen(["sleep", "60"], **options))
        return started[0]

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(ahead, "_is_compiled", lambda: compiled)
    monkeypatch.setattr(subprocess, "Popen", sleeping)
    try:
        with ahead.compiling_ahead():
            assert [process.poll() for process in started] == [None] * starts
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert len(started) == starts
    assert all(process.returncode for process in started)  # it has been ended, and waited for


def test_the_second_process_compiles_what_a_plan_calls() -> None:
    kernels: tuple[Any, ...] = (exchange, run_free_rounds)
    relation = synthetic_relation("web-google", 8, scale=0.01)
    make_plan(relation, resolve_topology("dgx1", 8), "auto", PlanOptions())
    of_plan = [len(kernel.overloads) for kernel in kernels]
    compile_bound_and_exchange()
    assert of_plan == [len(kernel.overloads) for kernel in kernels] == [1, 1]
