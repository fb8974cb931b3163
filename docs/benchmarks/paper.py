"""What the DGCL paper claims of communication, against plans for stand-ins of its graphs on its machines.

    python docs/benchmarks/paper.py GRAPHS/ [--write docs/paper.md]

Half a minute of processor time. Relations are drawn (dgcl.planner.synthetic) with the vertices and edges of the paper's
Table 4, at a tenth of their number: no latencies are modelled, so sizes cancel out of every ratio here. GRAPHS/ has the
real graphs whose replication factors are shown. Times are the model's, or the simulator's, which plays each
message (`dgcl simulate`); nothing is measured but the processor time of planning.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from marked import write_between

from dgcl.graph.files import read_graph
from dgcl.partition import partition_graph
from dgcl.partition.replication import replication_factors
from dgcl.planner import Plan, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.reading.report import report
from dgcl.planner.simulator.simulate import simulate
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies

MACHINES = (("dgx1", 4), ("dgx1", 8), ("pcie8", 8), ("dgx1x2", 16))
METHODS = ("direct", "spst", "auto")
SCALE = 0.1
REAL = ("web_google_scc", "ogbn_arxiv", "amazon_computers")
PARTS = (2, 4, 8, 16)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def timed(relation: Relation, topology: Topology, method: str) -> tuple[Plan, float]:
    """A plan, and the processor seconds that it took with compiled code loaded."""
    make_plan(relation, topology, method)
    started = time.process_time()
    return make_plan(relation, topology, method), time.process_time() - started


def plans_table() -> str:
    """Each graph on each machine: how much less than peer-to-peer."""
    rows = []
    for machine, ranks in MACHINES:
        topology = without_latencies(resolve_topology(machine, ranks))
        for shape in SHAPES:
            relation = synthetic_relation(shape, ranks, scale=SCALE)
            made = {method: timed(relation, topology, method) for method in METHODS}
            direct = made["direct"][0].predicted_seconds
            # GPUs share a link in proportion to the bytes that are under way (dgcl simulate --shares).
            played = {method: simulate(plan, shares="bytes").seconds for method, (plan, _) in made.items()}
            less = [f"{1 - made[method][0].predicted_seconds / direct:.1%}" for method in ("spst", "auto")]
            less.append(f"{1 - made['auto'][0].lower_bound_seconds / direct:.1%}")
            less += [f"{1 - played[method] / played['direct']:.1%}" for method in ("spst", "auto")]
            seconds = [f"{made[method][1]:.2f}" for method in ("spst", "auto")]
            rows.append((machine, str(ranks), shape, *less, *seconds))
    header = ("machine", "ranks", "graph", "SPST", "`auto`", "any plan, at most")
    return table((*header, "SPST, played", "`auto`, played", "SPST, s", "`auto`, s"), rows)


def kinds_table() -> str:
    """How long the busiest connection of each kind works, in percent of the time of peer-to-peer."""
    topology = without_latencies(resolve_topology("dgx1", 8))
    relation = synthetic_relation("web-google", 8, scale=SCALE)
    rows, direct = [], 0.0
    for method in METHODS:
        plan = make_plan(relation, topology, method)
        direct = direct or plan.predicted_seconds
        kinds = {kind["kind"]: kind["busiest_seconds"] / direct for kind in report(plan)["kinds"]}
        rows.append((f"`{method}`", *(f"{share:.0%}" for share in kinds.values())))
    return table(("method", *kinds), rows)


def replication_table(folder: Path) -> str:
    """Copies of each vertex that ranks hold if they avoid communication (`dgcl partition` shows them)."""
    rows = []
    for name in REAL:
        graph = read_graph(folder / f"{name}.npz").graph
        for parts in PARTS:
            factors = replication_factors(graph, partition_graph(graph, parts), parts, 3)
            rows.append((name, str(parts), *(f"{factor:.2f}" for factor in factors)))
    return table(("graph", "parts", "1 hop", "2 hops", "3 hops"), rows)


def main() -> None:
    """Make the tables; print them, and put them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path)
    parser.add_argument("--write", metavar="PAGE")
    args = parser.parse_args()
    made = {"plans": plans_table(), "kinds": kinds_table(), "replication": replication_table(args.graphs)}
    for name, text in made.items():
        print(f"\n{name}\n\n{text}", flush=True)
        if args.write is not None:
            write_between(args.write, name, text)


if __name__ == "__main__":
    main()
