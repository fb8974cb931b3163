"""How good plans are, what planning takes, how row widths decide stages, and plans up to 1024 ranks.

Relations are drawn (dgcl.planner.synthetic). Five to ten minutes. Columns of the cells:

    pays            peer-to-peer's predicted time / the plan's; 1.00: planning does not pay
    over bound      how far the plan of `auto` is above the proven lower bound
    ms              processor milliseconds of planning and proving it, compiled code loaded
    stages          of that plan
    sent            rows sent over links / rows needed: 1.00 is no relaying at all
    optimal         how far the plan of `optimal` is above the bound, and its milliseconds (8 devices)
    SPST            time of the paper's greedy plan / time of the plan of `auto` (8 devices)

Every plan is proved: it delivers, and its cost, gap and fingerprint are computed again (`verify_plan`).
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from dgcl.planner import Plan, PlanOptions, Relation, make_plan
from dgcl.planner.column_generation.search import stage_search
from dgcl.planner.column_generation.search.stage_search import StageSearch
from dgcl.planner.cost import predicted_seconds
from dgcl.planner.methods import auto
from dgcl.planner.synthetic import synthetic_relation
from dgcl.planner.verify.check_plan import verify_plan
from dgcl.topology import Connection, Device, Link, Topology, resolve_topology
from dgcl.topology.latencies import without_latencies
from docs.figures.framework import HERE, Figure, Run, machine

PAGE = "planner.md"
MACHINES = (
    "dgx1", "pcie8", "summit", "dgx_a100", "dgx1x2", "dgx1x4", "dgx_a100x4", "dgx_a100x8",
)  # fmt: skip
CELLS = {
    "machine": "", "ranks": "", "graph": "", "pays": ".2f", "over bound": ".2%", "ms": ".0f", "stages": "",
    "sent": ".2f", "optimal over bound": ".3%", "ms, optimal": ".0f", "SPST": ".2f",
}  # fmt: skip
TARGETS = (
    (1, 8, "over bound", 0.01), (1, 8, "optimal over bound", 0.001), (1, 8, "ms", 500), (1, 8, "ms, optimal", 500),
    (1, 8, "stages", 4), (9, 16, "over bound", 0.01), (9, 16, "ms", 2000), (17, 64, "over bound", 0.03),
    (17, 64, "ms", 5000),
)  # fmt: skip
"""Ranks from and to, column, and what it may be at most."""
PARTS: dict[str, tuple[list[str], Any, str, Any]] = {
    "column generation": (["column_generation/*/*.py"], StageSearch, "run", lambda self: None),
    "exchange of trees": (
        ["column_generation/improvement/tree_exchange.py"], stage_search, "improve", lambda trees, *_, **__: trees,
    ),
    "re-parenting": (
        ["column_generation/improvement/reparent.py"], stage_search, "reparent", lambda trees, *_, **__: trees,
    ),
    "plans of bundles": (
        [f"column_generation/*/{file}.py" for file in ("grouped", "aggregated")],
        StageSearch, "_search_groups", lambda *_: None,
    ),
    "plans as if stages were short": ([], StageSearch, "_try_short_stages", lambda *_: None),
    "plans by machines": (["methods/hierarchical*.py"], auto, "_plan_by_machines", lambda _: None),
    "the greedy": (["methods/spst*.py"], auto, "GREEDY_ABOVE", math.inf),
}  # fmt: skip
"""Files, and what is replaced by what to plan without a part."""
WIDTHS, COMMON = (4, 32, 256, 2048), 512
CASES = (("dgx1", "web-google"), ("pcie8", "web-google"), ("summit", "com-orkut"))
FIRST = """
import sys, time
begin = time.perf_counter()
import dgcl.planner
imported = time.perf_counter() - begin
assert "torch" not in sys.modules
from dgcl.planner.synthetic import synthetic_relation
from dgcl.topology import preset
dgcl.planner.make_plan(synthetic_relation("web-google", 8, scale=0.01), preset("dgx1"))
print(imported, time.perf_counter() - begin)
"""


def planned(relation: Relation, topology: Topology, method: str) -> tuple[Plan, float]:
    """The plan and the processor milliseconds that it took, of a relation that nobody has asked anything yet."""
    for _ in range(2):  # compiled code is loaded after the first
        fresh = replace(relation)
        begin = time.process_time()
        plan = make_plan(fresh, topology, method)
        milliseconds = 1e3 * (time.process_time() - begin)
    verify_plan(plan)
    return plan, milliseconds


def cell(name: str, shape: str, relation: Relation, topology: Topology) -> list[Any]:
    """One relation on one machine by all methods that the table shows."""
    auto, took = planned(relation, topology, "auto")
    row = [
        name,
        topology.num_devices,
        shape,
        auto.direct_seconds and auto.direct_seconds / auto.predicted_seconds,
    ]
    row += [auto.gap, took, auto.num_stages, auto.trees.rows_moved() / max(1, relation.deliveries)]
    if topology.num_devices > 8:
        return [*row, None, None, None]
    optimal, took = planned(relation, topology, "optimal")
    greedy, _ = planned(relation, topology, "spst")
    return [*row, optimal.gap, took, greedy.predicted_seconds / auto.predicted_seconds]


def cells(run: Run) -> Iterator[list[Any]]:
    """All cells, machine by machine."""
    for name in run.some(MACHINES):
        topology = without_latencies(resolve_topology(name))
        for shape in ("reddit", "web-google", "wiki-talk"):
            relation = synthetic_relation(shape, topology.num_devices, scale=0.01 if run.quick else 1.0)
            yield cell(name, shape, relation, topology)


def first_plans(run: Run) -> Iterator[list[Any]]:
    """The first plan of a process, with compiled code on disk; and with none, unless it is to be quick."""
    for cold in (False,) if run.quick else (False, True):
        with tempfile.TemporaryDirectory() as empty:
            env = os.environ | ({"NUMBA_CACHE_DIR": empty} if cold else {})
            done = subprocess.run(
                [sys.executable, "-c", FIRST], capture_output=True, check=True, text=True, env=env
            )
        imported, planned = map(float, done.stdout.split())
        if cold:
            yield ["first plan ever, compiling everything, s", None, planned, "", ""]
        else:
            yield ["import dgcl.planner, without torch, s", 0.3, imported, "", met(imported, 0.3)]
            yield ["first plan of a process, s", 2.0, planned, "", met(planned, 2.0)]


def met(value: float, limit: float) -> str:
    """The verdict."""
    return "yes" if value <= limit else "**no**"


def figures(run: Run) -> list[Figure]:
    """Every target against what this machine measures, and every cell."""
    text = "{pays:.2f}, {over bound:.2%}, {ms:.0f} ms, {SPST:.2f}"
    small = ("{machine}, {ranks}".format_map, "{graph}".format_map, text.format_map)
    table = Figure(CELLS, list(cells(run)), small=small)
    names = list(CELLS)

    def targets() -> Iterator[list[Any]]:
        for low, high, name, limit in TARGETS:
            at = names.index(name)
            if rows := [row for row in table.rows if low <= row[1] <= high]:
                worst = max(rows, key=lambda row: row[at])
                where = f"{worst[0]}, {worst[2]}"
                yield [f"{low} to {high} devices: {name}", limit, worst[at], where, met(worst[at], limit)]
        yield from first_plans(run)

    columns = {"target": "", "at most": "g", "measured": ".3g", "where": "", "met": ""}
    return [Figure(columns, targets(), machine()), table]


def widths(run: Run) -> Figure:
    """The stages of plans by row width, with the latencies of the presets; predicted times."""
    columns = {
        "machine": "", "graph": "", "row bytes": "", "stages": "", "us": ".1f", "over bound": ".1%",
        f"plan for {COMMON} B": ".3f", "direct": ".2f",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        for name, graph in run.some(CASES):
            topology = resolve_topology(name)
            relation = synthetic_relation(graph, topology.num_devices, scale=0.1)
            common = make_plan(relation, topology, "auto", PlanOptions(row_bytes=COMMON))
            for width in WIDTHS:
                plan = make_plan(relation, topology, "auto", PlanOptions(row_bytes=width))
                seconds = plan.predicted_seconds
                other = predicted_seconds(common.trees, topology.arrays(), width)
                direct = plan.direct_seconds and plan.direct_seconds / seconds
                yield [name, graph, width, plan.num_stages, 1e6 * seconds, plan.gap, other / seconds, direct]

    text = f"{{stages}}, {{us:.1f}} us, {{plan for {COMMON} B:.3f}}"
    small = ("{row bytes}".format_map, "{machine}, {graph}".format_map, text.format_map)
    return Figure(columns, rows(), small=small)


def drawn_plan(graph: str, ranks: int, options: PlanOptions) -> tuple[Plan, float]:
    """The plan of a graph's relation at this number of ranks on machines of type dgx_a100, and its seconds."""
    topology = resolve_topology("dgx_a100" if ranks == 8 else f"dgx_a100x{ranks // 8}")
    relation = synthetic_relation(graph, ranks)
    begin = time.process_time()
    return make_plan(relation, topology, "auto", options), time.process_time() - begin


def scale(run: Run) -> Figure:
    """One graph on ever more machines, without building the graph."""
    columns = {
        "ranks": "", "boundary": ",", "readers": ".2f", "direct ms": ".3f", "plan ms": ".3f", "over bound": ".1%",
        "stages": "", "sent": ".2f", "planned in s": ".1f", "limited by": "",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        for ranks in (8, 16) if run.quick else (8, 64, 256, 1024):
            plan, seconds = drawn_plan("web-google", ranks, PlanOptions(time_limit=180.0, gap=0.01))
            relation = plan.relation
            yield [
                ranks, relation.num_vertices, relation.deliveries / relation.num_vertices,
                plan.direct_seconds and 1e3 * plan.direct_seconds, 1e3 * plan.predicted_seconds, plan.gap,
                plan.num_stages, plan.trees.rows_moved() / relation.deliveries, seconds, plan.meta["limited_by"],
            ]  # fmt: skip

    return Figure(columns, rows())


def machines_in_a_row(num: int, each: int) -> Topology:
    """Machines of devices on a switch each; a cable joins the switches of neighbours, and devices send no further."""
    names = [[f"g{m}_{d}" for d in range(each)] for m in range(num)]
    ports = [Connection(f"p{name}", "NV", name, f"s{m}", 100.0) for m in range(num) for name in names[m]]
    cables = [Connection(f"c{m}", "IB", f"s{m}", f"s{m + 1}", 10.0) for m in range(num - 1)]
    links = [
        Link(a, b, (f"p{a}", *([] if m == n else [f"c{min(m, n)}"]), f"p{b}"))
        for m in range(num) for n in range(num) if abs(m - n) <= 1 for a in names[m] for b in names[n] if a != b
    ]  # fmt: skip
    devices = tuple(Device(name, m) for m in range(num) for name in names[m])
    return Topology(f"{num} machines in a row", devices, (*ports, *cables), tuple(links))


def parts(run: Run) -> Figure:
    """Longer predicted times of `auto` without a part of the planner, over cells of few and of many devices."""
    cells = [
        ("dgx1", "web-google", 0.05),
        ("dgx1", "com-orkut", 0.001),
        ("pcie4_1080ti", "web-google", 0.0002),
    ]
    cells += [("dgx1x2", "reddit", 0.05), ("dgx1x4", "web-google", 0.1), (4, "reddit", 0.02)]
    chosen = []
    for name, graph, scale in run.some(cells):
        topology = resolve_topology(name) if isinstance(name, str) else machines_in_a_row(name, 8)
        chosen.append((synthetic_relation(graph, topology.num_devices, scale=scale), topology, graph))
    usual = [make_plan(*cell[:2]).predicted_seconds for cell in chosen]

    def rows() -> Iterator[list[Any]]:
        for part, (files, owner, name, instead) in run.some([*PARTS.items()]):
            paths = [path for pattern in files for path in (HERE.parents[1] / "planner").glob(pattern)]
            lines = sum(len(path.read_text().splitlines()) for path in paths) or None
            with mock.patch.object(owner, name, instead):
                without = [make_plan(*cell[:2]).predicted_seconds for cell in chosen]
            longer = [seconds / before for seconds, before in zip(without, usual, strict=True)]
            worst = max(range(len(longer)), key=longer.__getitem__)
            where = f"{chosen[worst][1].name}, {chosen[worst][2]}" if longer[worst] > 1 else ""
            yield [part, lines, statistics.geometric_mean(longer) - 1, longer[worst] - 1, where]

    columns = {"part": "", "lines": "", "geometric mean": ".2%", "at most": ".1%", "where": ""}
    return Figure(columns, rows())


FIGURES = {"figures": figures, "widths": widths, "scale": scale, "parts": parts}
