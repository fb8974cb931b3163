"""The command ``dgcl warmup``: compiles the numba kernels that jobs usually need, and keeps them on disk.

Parts are compiled in processes side by side, since numba compiles on one core at a time. ``compile_beside`` does that
while ``dgcl plan`` runs: another process begins with what a plan needs last.

Called by `plan` and `dgcl/cli/__init__`. Free to change while what is compiled is what plans call, for the same types,
and no process is started where it is on disk (`tests/dgcl/cli/test_warmup.py`).
"""

import argparse
import atexit
import os
import subprocess
import sys
import time
from typing import Any

from dgcl.cli.command_errors import CliError
from dgcl.cli.output import print_json, say

_PARTS = ("exchange", "planner")
_LATE_PART = "planner-end"  # of the planner: what a plan needs last


def add_parser(verbs: Any) -> None:
    """Declare the command."""
    parser = verbs.add_parser(
        "warmup",
        help="compile the kernels for this machine, once, after installing",
        description="Compile what most jobs need and keep it on disk: by default the code of the exchange and that of"
        " the planner, side by side. What is there already is only loaded. Without this the first job on a machine"
        " does it.",
    )
    parser.add_argument("part", nargs="?", choices=(*_PARTS, _LATE_PART), help="one of them, in this process")
    parser.runs(_run)


def _run(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    if args.part is not None:
        {"exchange": _warm_exchange, "planner": _warm_planner, _LATE_PART: _warm_planner_end}[args.part]()
    else:
        _side_by_side(subprocess.DEVNULL if args.json else None)
    passed = time.perf_counter() - begin
    if args.json:
        print_json({"seconds": passed})
    elif args.part is not None:
        say(f"kernels of the {args.part} are ready ({passed:.1f} s)", flush=True)
    return 0


def _side_by_side(output: int | None) -> None:
    """Compile in processes of their own: numba compiles on one core at a time."""
    running = [
        subprocess.Popen([sys.executable, "-m", "dgcl", "warmup", part], stdout=output) for part in _PARTS
    ]
    try:
        worst = max(process.wait() for process in running)
    finally:
        for process in running:
            process.kill()
    if worst:
        raise CliError("a part could not be compiled, see above", status=1)


def compile_beside() -> None:
    """Where planning would have to compile, let another process begin with what it needs last."""
    from dgcl.kernels.compiled import is_on_disk
    from dgcl.planner.column_generation.improvement.tree_exchange import exchange

    if is_on_disk(exchange) or os.cpu_count() == 1:
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "dgcl", "warmup", _LATE_PART],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    @atexit.register
    def end() -> None:
        process.kill()
        process.wait()


def _warm_exchange() -> None:
    """From a graph to rows that have been exchanged, on two ranks; and sums over edges."""
    import numpy as np
    import torch

    import dgcl
    from dgcl.aggregation import extreme_kernels
    from dgcl.graph import as_graph
    from dgcl.kernels import edge_sums
    from dgcl.kernels.compiled import compile_all
    from dgcl.transport import precompile

    precompile.prepare()
    compile_all(edge_sums)
    extreme_kernels.prepare()
    graph = as_graph(np.random.default_rng(0).integers(0, 60, (2, 300)))

    def exchange() -> None:
        comm = dgcl.build_comm_info(graph, "uniform")
        comm.fold(comm.expand(torch.ones(comm.num_owned, 1)))

    dgcl.launch(exchange, 2)


def _warm_planner() -> None:
    """Plans and their simulation, on one machine and on four."""
    from dgcl.planner import PlanOptions
    from dgcl.planner.methods import make_plan
    from dgcl.planner.simulator.event_simulator import simulate
    from dgcl.planner.synthetic import synthetic_relation
    from dgcl.topology import resolve_topology

    for machine, ranks in (("dgx1", 8), ("dgx1x4", 32)):
        relation = synthetic_relation("web-google", ranks, scale=0.002)
        for method in ("spst", "auto"):
            simulate(
                make_plan(relation, resolve_topology(machine, ranks), method, PlanOptions(time_limit=10))
            )


def _warm_planner_end() -> None:
    """The exchange of trees, the proof of a plan and its simulation."""
    import numpy as np

    from dgcl.planner import PlanOptions
    from dgcl.planner.column_generation.improvement.tree_exchange import improve
    from dgcl.planner.column_generation.master.fractional import Problem
    from dgcl.planner.column_generation.pricing.device_groups import plan_states
    from dgcl.planner.column_generation.pricing.flows import Routes
    from dgcl.planner.methods import direct, make_plan
    from dgcl.planner.simulator.event_simulator import simulate
    from dgcl.planner.synthetic import synthetic_relation
    from dgcl.topology import resolve_topology

    relation, topology = synthetic_relation("web-google", 8, scale=0.002), resolve_topology("dgx1", 8)
    arrays, options = topology.arrays(), PlanOptions()
    links = arrays.link_src.shape[0]
    routes = Routes(
        arrays.link_ptr, arrays.link_directions, 1.0 / arrays.bandwidth, np.ones(links), np.zeros(links)
    )
    problem = Problem(plan_states(relation, topology), routes, 1e6)
    trees = direct.plan(relation, topology, options)
    improve(trees, problem, 2, enough=0.0)
    simulate(make_plan(relation, topology, "direct", options))
