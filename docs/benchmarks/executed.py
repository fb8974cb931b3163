"""How far plans are above the bound as they are executed, as the table of docs/simulation.md.

    python docs/benchmarks/executed.py [GRAPHS/] [--write docs/simulation.md]

Four relations of the paper's graphs at a tenth of their sizes, and of the files in GRAPHS two that are hard: for each
machine of up to 8 devices the plan of `auto` for rows of 512 bytes, as our transports carry it out
(`planner/simulator/executed.py`). First without latencies, over a bound that no execution beats, with or without
stages: by cuts, and by prices that are the same in every stage. Then with the preset's latencies, over the plan's own
bound. All is computed, nothing measured: the table is the same on every machine. Two to three minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from marked import print_into

from dgcl.planner import Relation, make_plan
from dgcl.planner.bounds.best import best_bound
from dgcl.planner.column_generation.dual_bound.price_bound import price_bound
from dgcl.planner.plan import Plan
from dgcl.planner.simulator.executed import executed_seconds, protocol
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies

MACHINES = ("dgx1", "pcie8", "summit", "dgx_a100", "hgx_h100")
SHAPES = ("reddit", "com-orkut", "web-google", "wiki-talk")
GRAPHS = ("amazon_computers", "coauthor_physics")
ROW_BYTES = 512
NAMED_ABOVE = 1.03  # of the bound: then the busiest connection is named


def relations(machine: str, parts: int, folder: str) -> Iterator[tuple[str, Relation]]:
    """The synthetic ones, and those of the graphs in the folder."""
    for shape in SHAPES:
        yield shape, synthetic_relation(shape, parts, scale=0.1)
    for graph in GRAPHS if folder else ():
        with tempfile.TemporaryDirectory() as made:
            out, dgcl = f"{made}/r.npz", [sys.executable, "-m", "dgcl"]
            path = str(Path(folder) / f"{graph}.npz")
            asked = [
                "--topology",
                machine,
                "--parts",
                str(parts),
                "--method",
                "direct",
                "--relation-out",
                out,
            ]
            subprocess.run([*dgcl, "plan", path, *asked, "--json"], check=True, stdout=subprocess.DEVNULL)
            yield graph, Relation.load(out)


def bound_without_stages(relation: Relation, topology: Topology) -> float:
    """Seconds that no execution beats on a machine without latencies, whatever it does when."""
    cut, arrays = best_bound(relation, topology, ROW_BYTES).seconds, topology.arrays()
    unit = ROW_BYTES / 1e9
    found = price_bound(
        relation, arrays, np.arange(relation.world_size), factor=np.ones(len(arrays.link_src)), aim=cut / unit,
        known=cut / unit, tolerance=2e-4, deadline=np.inf,
    )  # fmt: skip
    return max(cut, found.value * unit)


def busiest(plan: Plan) -> str:
    """The connection that is in use the longest as the plan is executed."""
    run = simulate(plan, **protocol(plan.topology).options())
    return run.direction_names[int(np.argmax(run.direction_busy))]


def line(machine: str, graph: str, relation: Relation, topology: Topology) -> str:
    """A row of the table."""
    bare = without_latencies(topology)
    plan, real = make_plan(relation, bare), make_plan(relation, topology)
    bound = bound_without_stages(relation, bare)
    orders = [
        executed_seconds(plan),
        simulate(plan, order="neighbours").seconds,
        simulate(plan, shares="bytes").seconds,
    ]
    over = [f"{(seconds or np.nan) / bound:.3f}" for seconds in orders]
    why = busiest(plan) if float(over[0]) > NAMED_ABOVE else ""
    taken = executed_seconds(real) or np.nan
    late = [f"{1e6 * taken:.1f}", f"{taken / real.lower_bound_seconds:.3f}", str(real.num_stages)]
    cells = [machine, graph, str(plan.num_stages), f"{1e6 * bound:.1f}", *over, why, *late]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="?", default="", help="folder with graph files")
    parser.add_argument("--write", default="", help="page to put the table into")
    given = parser.parse_args()
    head = ("machine", "graph", "stages", "bound us", "executed", "equal shares", "order eager", "limited by",
            "with latencies: us", "/ bound", "stages")  # fmt: skip
    rows = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for machine in MACHINES:
        topology = resolve_topology(machine)
        for graph, relation in relations(machine, topology.num_devices, given.graphs):
            rows.append(line(machine, graph, relation, topology))
            print(rows[-1], file=sys.stderr, flush=True)
    print_into(given.write, "executed", "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
