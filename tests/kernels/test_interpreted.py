"""What is small is interpreted where no machine code is on disk, with the same results bit for bit.

what runs                   | code on disk | compiled?
----------------------------+--------------+----------
few elements                | no           | no
more elements than small    | no           | yes
few elements, all compiled  | no           | yes
few elements, took long     | no           | yes
few elements                | yes          | yes
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from dgcl.kernels.interpreted import interpreted
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import resolve_topology

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import numpy as np
from dgcl.kernels.compiled import compiled

@compiled(inline=False)
def twice(x):
    return 2.0 * x

@compiled(small=10)
def total(values):
    s = 0.0
    for x in values:
        s += twice(x)
    return s
"""
BEGIN = "import sys; sys.path.insert(0, {!r})\nfrom probe import np, total\n"
END = "print(total(np.ones({})), len(total.overloads))"


@pytest.mark.parametrize(
    ("before", "first", "second"),
    [
        pytest.param(END.format(3), "6.0 0", "6.0 0", id="few"),
        pytest.param(END.format(11), "22.0 1", "6.0 1", id="more"),
        pytest.param(
            "from dgcl.kernels.compiled import nothing_interpreted\nwith nothing_interpreted():\n  "
            + END.format(3),
            "6.0 1",
            "6.0 1",
            id="all compiled",
        ),
        pytest.param(
            "from dgcl.kernels import interpreted\ntotal(np.ones(3)); interpreted._ENOUGH_SECONDS = 0.0\n"
            + END.format(3),
            "6.0 1",
            "6.0 1",
            id="took long",
        ),
    ],
)
def test_what_is_compiled(tmp_path: Path, before: str, first: str, second: str) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def said(code: str) -> str:
        code = BEGIN.format(str(tmp_path)) + code
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout.strip()

    assert said(before) == first
    assert said(END.format(3)) == second  # now as the first process left the disk


@pytest.mark.parametrize(
    ("machine", "ranks", "graph"),
    [("dgx1", 8, "web-google"), ("uniform", 5, "reddit"), ("summit", 6, "com-orkut")],
)
def test_interpreted_as_compiled(
    machine: str, ranks: int, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relation = synthetic_relation(graph, ranks, scale=0.001)
    topology = resolve_topology(machine, ranks)

    def plan_all() -> None:
        for method in ("spst", "auto"):
            simulate(make_plan(relation, topology, method, PlanOptions()))

    plan_all()  # imports what it needs
    tried: set[str] = set()

    def both(kernel: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            given = copy.deepcopy(arguments)
            with np.errstate(all="ignore"):
                found = interpreted(kernel.py_func)(*given)
            expected = kernel(*arguments)
            assert _bits((found, given)) == _bits((expected, arguments)), kernel.py_func.__qualname__
            tried.add(f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}")
            return expected

        return call

    for name, module in list(sys.modules.items()):
        if name.startswith("dgcl.planner"):
            for key, value in list(vars(module).items()):
                if isinstance(value, Dispatcher) and getattr(value, "small", False):
                    monkeypatch.setattr(module, key, both(value))
    plan_all()
    assert len(tried) >= 8, tried


def _bits(value: Any) -> Any:
    """A value that is equal where all bits of all arrays and numbers are."""
    if isinstance(value, tuple):
        return tuple(map(_bits, value))
    if value is None:
        return None
    array = np.asarray(value)
    kind = {"i": np.int64, "b": np.bool_, "f": np.float64, "u": np.uint64}[array.dtype.kind]
    return array.shape, array.astype(kind).tobytes()
