"""How good plans are and what planning takes: every target of the planner against what this machine measures.

    python docs/benchmarks/planner.py [--machines dgx1,pcie8,...] [--shapes reddit,...] [--no-setup]
                                      [--json results.json] [--write docs/planner.md]

Prints the table of cells (machine x graph), then the table of targets; `--write` puts both into the page, between
its markers. Five to six minutes on a busy host. Relations are drawn (dgcl.planner.synthetic) at the sizes of the
paper's four graphs. Each plan is made twice, for a relation that nobody has asked anything yet, and timed at the second
time: then the compiled code that it takes is loaded. Columns of the cells:

    machine, ranks, graph   what is planned
    pays            peer-to-peer's predicted time / the plan's; 1.00: planning does not pay
    over bound      how far the plan of `auto` is above the proven lower bound, in percent
    ms              processor milliseconds of planning and proving it, from relation to plan in memory
    stages          of that plan
    sent            rows sent over links / rows needed: 1.00 is no relaying at all
    optimal         how far the plan of `optimal` is above the bound, in percent, and its milliseconds (8 devices)
    SPST            time of the paper's greedy plan / time of the plan of `auto` (8 devices)
    proved          the plan delivers, and its cost, gap and fingerprint were computed again (verify_plan)

The rest is measured by `planner_setup.py`, each task in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from marked import print_into

from dgcl.planner import Plan, PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.synthetic import SHAPES, synthetic_relation
from dgcl.planner.verify.check import verify_plan
from dgcl.topology import Topology, resolve_topology
from dgcl.topology.latencies import without_latencies

MACHINES = "dgx1,pcie8,summit,dgx_a100,hgx_h100,dgx1x2,dgx1x4,dgx_a100x4,hgx_h100x4,dgx_a100x8"
SETUP = ("import", "cold", "first", "tables", "classes", "build")
Cell = dict[str, Any]


def planned(relation: Relation, topology: Topology, method: str) -> tuple[Plan, float]:
    """Plan twice; return the plan and the processor seconds that the second took."""
    for _ in range(2):
        fresh = replace(relation)
        started = time.process_time()
        plan = make_plan(fresh, topology, method, PlanOptions())
        seconds = time.process_time() - started
    return plan, seconds


def proved(plan: Plan) -> bool:
    """Whether the plan holds what it states."""
    try:
        verify_plan(plan)
    except ValueError as error:
        print(f"WRONG: {error}", file=sys.stderr)
        return False
    return True


def measure(machine: str, shape: str, relation: Relation, topology: Topology) -> Cell:
    """Plan one relation on one machine by all methods that the table shows."""
    auto, seconds = planned(relation, topology, "auto")
    direct = auto.direct_seconds
    cell: Cell = {
        "machine": machine, "ranks": topology.num_devices, "graph": shape, "num_classes": relation.num_classes,
        "boundary_vertices": relation.num_vertices, "predicted_seconds": auto.predicted_seconds,
        "pays": None if direct is None else direct / auto.predicted_seconds, "gap": auto.gap,
        "planning_seconds": seconds, "num_stages": auto.num_stages, "made_by": auto.meta["made_by"],
        "sent": auto.trees.rows_moved() / max(1, relation.deliveries), "limited_by": auto.meta["limited_by"],
        "correct": proved(auto),
    }  # fmt: skip
    if topology.num_devices <= 8:
        best, seconds = planned(relation, topology, "optimal")
        cell |= {"optimal_gap": best.gap, "optimal_seconds": seconds}
        cell["correct"] = cell["correct"] and proved(best)
        greedy, seconds = planned(relation, topology, "spst")
        cell |= {"spst": greedy.predicted_seconds / auto.predicted_seconds, "spst_seconds": seconds}
    return cell


def cells_of(machines: list[str], shapes: list[str]) -> list[Cell]:
    """All cells, machine by machine."""
    cells: list[Cell] = []
    relations: dict[tuple[str, int], Relation] = {}
    for machine in machines:
        topology = without_latencies(resolve_topology(machine))
        ranks = topology.num_devices
        for shape in shapes:
            if (shape, ranks) not in relations:
                relations[shape, ranks] = synthetic_relation(shape, ranks)
            cells.append(measure(machine, shape, relations[shape, ranks], topology))
            print(cell_line(cells[-1]), file=sys.stderr, flush=True)
    return cells


def cell_line(cell: Cell) -> str:
    """One row of the table of cells."""
    optimal = spst = ""
    if "optimal_gap" in cell:
        optimal = f"{100 * cell['optimal_gap']:.3f}, {1e3 * cell['optimal_seconds']:.0f} ms"
        spst = f"{cell['spst']:.2f}"
    pays = "" if cell["pays"] is None else f"{cell['pays']:.2f}"
    values = (
        cell["machine"], str(cell["ranks"]), cell["graph"], pays, f"{100 * cell['gap']:.2f}",
        f"{1e3 * cell['planning_seconds']:.0f}", str(cell["num_stages"]), f"{cell['sent']:.2f}", optimal, spst,
        "yes" if cell["correct"] else "NO",
    )  # fmt: skip
    return f"| {' | '.join(values)} |"


def setup() -> dict[str, Cell]:
    """Run the tasks of planner_setup.py; `first` with an empty cache of compiled code."""
    script = str(Path(__file__).with_name("planner_setup.py"))
    results = {}
    for task in SETUP:
        with tempfile.TemporaryDirectory() as empty:
            env = {**os.environ, **({"NUMBA_CACHE_DIR": empty} if task == "first" else {})}
            done = subprocess.run(
                [sys.executable, script, task], capture_output=True, check=True, text=True, env=env
            )
        results[task] = json.loads(done.stdout.splitlines()[-1])
        print(f"{task}: {results[task]}", file=sys.stderr, flush=True)
    return results


def targets_of(cells: list[Cell], found: dict[str, Cell]) -> list[tuple[str, str, str, bool | None]]:
    """(what, target, measured, met); cells are represented by their worst."""
    rows: list[tuple[str, str, str, bool | None]] = []

    def worst(name: str, mine: list[Cell], key: str, limit: float, percent: bool) -> None:
        if mine:
            cell = max(mine, key=lambda cell: float(cell[key]))
            value, unit = (100 * cell[key], "%") if percent else (cell[key], "s")
            where = f"{value:.3g} {unit} ({cell['machine']}, {cell['graph']})"
            shown = f"<= {100 * limit:g} %" if percent else f"<= {limit:g} s"
            rows.append((name, shown, where, cell[key] <= limit))

    def single(name: str, task: str, key: str, limit: float | None, unit: str) -> None:
        if task in found:
            value = float(found[task][key])
            target = "reported" if limit is None else f"<= {limit:g} {unit}"
            rows.append((name, target, f"{value:.3g} {unit}", None if limit is None else value <= limit))

    one = [cell for cell in cells if cell["ranks"] <= 8]
    two = [cell for cell in cells if cell["ranks"] == 16]
    many = [cell for cell in cells if cell["ranks"] > 16]
    worst("8 devices: `auto` over the bound", one, "gap", 0.01, True)
    worst("8 devices: `optimal` over the bound", one, "optimal_gap", 0.001, True)
    worst("8 devices: `auto`, planning", one, "planning_seconds", 0.5, False)
    worst("8 devices: `optimal`, planning", one, "optimal_seconds", 0.5, False)
    if one:
        most = max(cell["num_stages"] for cell in one)
        rows.append(
            ("8 devices: stages (1 where peer-to-peer is best)", "2 to 4", f"at most {most}", most <= 4)
        )
    worst("16 devices: over the bound", two, "gap", 0.01, True)
    worst("16 devices: planning", two, "planning_seconds", 2.0, False)
    worst("32 and 64 devices: over the bound", many, "gap", 0.03, True)
    worst("32 and 64 devices: planning", many, "planning_seconds", 5.0, False)
    single("tables of 3 M vertices, 8 ranks", "tables", "seconds", 0.3, "s")
    single("classes of 3 M vertices, 64 ranks, all different", "classes", "seconds", 2.0, "s")
    single("import dgcl.planner, without torch", "import", "seconds", 0.3, "s")
    single("first plan of a process", "cold", "seconds", 2.0, "s")
    single("first plan ever, compiling everything", "first", "seconds", None, "s")
    single("build of 3 M vertices, 117 M edges, parts given", "build", "seconds", 5.0, "s")
    single("its memory besides the graph, over the graph's", "build", "peak_to_graph", 3.0, "x")
    return rows


def page(cells: list[Cell], targets: list[tuple[str, str, str, bool | None]]) -> str:
    """The tables, in Markdown."""
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    lines = [
        f"Measured on {machine}, Python {platform.python_version()}, one core used.",
        "",
        "| target | wanted | measured | met |",
        "| --- | --- | --- | --- |",
    ]
    words = {True: "yes", False: "**no**", None: ""}
    lines += [f"| {what} | {wanted} | {measured} | {words[met]} |" for what, wanted, measured, met in targets]
    head = [
        "machine",
        "ranks",
        "graph",
        "pays",
        "over bound %",
        "ms",
        "stages",
        "sent",
        "optimal over bound %",
        "SPST",
        "proved",
    ]
    lines += ["", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *map(cell_line, cells)]
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", default=MACHINES)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--no-setup", action="store_true", help="plans only")
    parser.add_argument("--json", default="")
    parser.add_argument("--write", default="", help="page to put the tables into")
    given = parser.parse_args()
    cells = cells_of(given.machines.split(","), given.shapes.split(","))
    found = {} if given.no_setup else setup()
    targets = targets_of(cells, found)
    text = page(cells, targets)
    if given.json:
        Path(given.json).write_text(
            json.dumps({"cells": cells, "setup": found, "targets": targets}, indent=1)
        )
    print_into(given.write, "figures", text)
    return 0 if all(cell["correct"] for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
