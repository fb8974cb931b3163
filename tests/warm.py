"""Compile the kernels that most tests need, on two cores, before the workers of a cold run would each compile them.

    python -m tests.warm

What is compiled already is only loaded. An index of compiled code that names a module which has moved since makes numba
fail; such ones are deleted first.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

RANKS = """
import numpy as np, torch, dgcl
from dgcl.graph import as_graph
edges = np.random.default_rng(0).integers(0, 60, (2, 300))
def train():
    for topology in ("uniform", "dgx1"):
        comm = dgcl.build_comm_info(as_graph(edges), topology)
        for dtype in (torch.float32, torch.float16):
            rows = torch.ones(comm.num_owned, 3, dtype=dtype)
            comm.fold(comm.expand(rows))
        comm.close()
dgcl.launch(train, 1)
dgcl.launch(train, 4)
"""
PLANS = """
from dgcl.planner import PlanOptions
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology.resolve import preset
for machine, ranks in (("dgx1", 8), ("dgx1x4", 32)):
    relation = synthetic_relation("web-google", ranks, scale=0.002)
    for method in ("spst", "auto"):
        simulate(make_plan(relation, preset(machine), method, PlanOptions()))
"""


def forget_moved_modules() -> None:
    """Delete indices of compiled code that cannot be read any more."""
    root = Path(__file__).resolve().parents[1]
    for index in [
        path for folder in ("dgcl", "kernels", "planner") for path in (root / folder).rglob("*.nbi")
    ]:
        try:
            with index.open("rb") as file:
                pickle.load(file)  # numba's version
                pickle.load(file)  # types of arguments, for which it imports modules
        except ImportError:
            index.unlink()
        except Exception:  # an older numba, a half-written file: numba deals with those
            continue


def main() -> int:
    """Run both at once; their messages are shown, and a failure is one."""
    forget_moved_modules()
    running = [subprocess.Popen([sys.executable, "-c", code]) for code in (RANKS, PLANS)]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    raise SystemExit(main())
