"""Compile the kernels that most tests need, on two cores, before the workers of a cold run would each compile them.

    python -m tests.warm

What is compiled already is only loaded.
"""

from __future__ import annotations

import subprocess
import sys

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


def main() -> int:
    """Run both at once; their messages are shown, and a failure is one."""
    running = [subprocess.Popen([sys.executable, "-c", code]) for code in (RANKS, PLANS)]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    raise SystemExit(main())
