"""What a plan compiles: another process begins with what it needs last, and for the same types."""

import subprocess
import sys

import pytest

from dgcl.cli import warmup

TYPES = """
from dgcl.cli.warmup import _warm_planner_end
from dgcl.planner.column_generation.improvement.tree_exchange import exchange
from dgcl.planner.methods import make_plan
from dgcl.planner.methods.spst_kernel import grow_trees
from dgcl.planner.simulator.kernel import play
from dgcl.planner.simulator.event_simulator import simulate
from dgcl.planner.synthetic import synthetic_relation
from dgcl.planner.verify.delivery_kernels import first_fault
from dgcl.topology import resolve_topology

_warm_planner_end()
relation = synthetic_relation("web-google", 8, scale=0.01)
for method in ("auto", "spst"):
    simulate(make_plan(relation, resolve_topology("dgx1", 8), method))
print(*(len(kernel.signatures) for kernel in (exchange, grow_trees, first_fault, play)))
"""


@pytest.mark.parametrize("on_disk, cores, starts", [(False, 2, 1), (True, 2, 0), (False, 1, 0)])
def test_another_process_compiles_where_that_helps(monkeypatch, on_disk: bool, cores: int, starts: int):
    started: list[list[str]] = []
    monkeypatch.setattr("dgcl.kernels.compiled.is_on_disk", lambda function: on_disk)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(warmup.subprocess, "Popen", lambda command, **options: started.append(command))
    monkeypatch.setattr(warmup.atexit, "register", lambda function: function)
    warmup.compile_beside()
    assert started == [[sys.executable, "-m", "dgcl", "warmup", "planner-end"]] * starts


@pytest.mark.slow
def test_it_compiles_what_plans_call():
    run = subprocess.run([sys.executable, "-c", TYPES], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1"] * 4
