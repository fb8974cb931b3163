"""What planning takes besides planning: imports, cold starts, tables, classes, a whole build. One task a process.

    python docs/benchmarks/planner_setup.py TASK

prints one JSON object. `planner.py` runs all tasks and makes a table of them. Tasks:

    import      seconds that `import dgcl.planner` takes in a fresh process, and whether torch came along
    cold        seconds of the first plan in a fresh process, imports included (dgx1; compiled code on disk)
    first       the same with an empty code cache: everything is compiled
    tables      seconds of compile_programs for 3 M vertices on 8 ranks, compiled code loaded
    classes     seconds of halo_classes at 64 ranks where 3 M vertices are about as many classes
    build       seconds and memory of build_comm_info's own work for 3 M vertices and 117 M edges, parts given

Seconds are (wall clock, processor time of this process); on a machine that does nothing else they agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VERTICES, EDGES, INSIDE = 3_070_000, 117_000_000, 0.8  # com-Orkut, and how much METIS leaves inside 8 parts


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Run once; return seconds and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}, result


def importing() -> dict[str, Any]:
    """Best of five fresh processes."""
    code = (
        "import sys,time,json;w,c=time.perf_counter(),time.process_time();import dgcl.planner;"
        "print(json.dumps({'seconds':time.perf_counter()-w,'cpu_seconds':time.process_time()-c,"
        "'torch':'torch' in sys.modules}))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    return dict(min(runs, key=lambda run: run["seconds"]))


def first_plan() -> dict[str, Any]:
    """The first plan of this process, on a relation that needs column generation, rounding and improvement."""

    def work() -> Any:
        from dgcl.planner import make_plan
        from dgcl.topology import preset

        return make_plan(relation(), preset("dgx1"))

    def relation() -> Any:
        from dgcl.planner.synthetic import synthetic_relation

        return synthetic_relation("web-google", 8, scale=0.01)  # milliseconds

    took, plan = timed(work)
    return {**took, "gap": plan.gap, "made_by": plan.meta["made_by"]}


def tables() -> dict[str, Any]:
    """A drawn relation of com-Orkut's size becomes programs; the second run counts."""
    from dgcl.planner import make_plan
    from dgcl.planner.synthetic import synthetic_relation
    from dgcl.program import compile_programs
    from dgcl.program.verify import verify_programs
    from dgcl.relation import Demand, ItemClasses
    from dgcl.topology import preset

    relation = synthetic_relation("com-orkut", 8)
    rng = np.random.default_rng(0)
    ids = rng.permutation(VERTICES)
    ptr = np.concatenate([[0], np.cumsum(relation.count)])
    part = rng.integers(0, 8, VERTICES).astype(np.int32)
    part[ids[: ptr[-1]]] = np.repeat(relation.source, relation.count)
    items = ids[: ptr[-1]].copy()
    wanted = np.zeros((1, VERTICES), np.uint64)
    wanted[0, items] = np.repeat(relation.dests[:, 0], relation.count)
    order = np.lexsort((items, np.repeat(np.arange(relation.num_classes), relation.count)))
    classes = ItemClasses(relation, ptr, items[order], part)
    plan = make_plan(relation, preset("dgx1"))
    compile_programs(plan, classes)
    took, programs = timed(lambda: compile_programs(plan, classes))
    proof, _ = timed(lambda: verify_programs(programs, plan, Demand(8, part, wanted)))
    return {**took, "proof_seconds": proof["seconds"], "boundary_vertices": int(ptr[-1])}


def classes() -> dict[str, Any]:
    """Every vertex with readers in a random set of a dozen ranks out of 64."""
    from dgcl.graph import Graph
    from dgcl.relation.classes import halo_classes

    rng = np.random.default_rng(0)

    def graph(num: int) -> tuple[Graph, np.ndarray]:
        degree = 12
        return (
            Graph(num, np.arange(num + 1) * degree, rng.integers(0, num, num * degree, np.int32)),
            rng.integers(0, 64, num, np.int32),
        )

    halo_classes(*graph(1000), 64)
    big, part = graph(3_000_000)
    took, found = timed(lambda: halo_classes(big, part, 64))
    return {**took, "num_classes": found.relation.num_classes, "num_edges": big.num_edges}


def crawl(num_vertices: int, num_edges: int) -> tuple[Any, np.ndarray]:
    """A graph of which 80% of the edges stay in one of 8 parts, and the parts.

    In-degrees follow a power law. Half of the vertices are read from other parts, by a power law as well: about as
    many boundary vertices and deliveries as the drawn relation of com-Orkut has (dgcl.planner.synthetic).
    """
    from dgcl.graph import Graph

    rng = np.random.default_rng(0)
    degrees = rng.pareto(1.3, num_vertices) + 1.0
    degrees = np.minimum(degrees, 3e4)
    ends = np.cumsum(degrees)
    indptr = np.concatenate([[0], np.round(ends * (num_edges / ends[-1]))]).astype(np.int64)
    part = (np.arange(num_vertices) * 8 // num_vertices).astype(np.int32)
    bounds = np.searchsorted(part, np.arange(9))
    indices = np.empty(num_edges, np.int32)
    for p in range(8):
        for start in range(int(indptr[bounds[p]]), int(indptr[bounds[p + 1]]), 1 << 22):
            stop = min(start + (1 << 22), int(indptr[bounds[p + 1]]))
            near = rng.integers(bounds[p], bounds[p + 1], stop - start, np.int32)
            far = (num_vertices // 2 * rng.random(stop - start, np.float32) ** 4).astype(np.int32)
            far = (far.astype(np.int64) * 2_654_435_761 % (num_vertices // 2) * 2).astype(
                np.int32
            )  # no order
            indices[start:stop] = np.where(rng.random(stop - start, np.float32) < INSIDE, near, far)
    return Graph(num_vertices, indptr, indices), part


def memory(field: str) -> int:
    """A figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def build() -> dict[str, Any]:
    """`dgcl.build.prepare`, which is what rank 0 does; a small one first, so that compiled code is loaded."""
    from dgcl.build import prepare

    small, part = crawl(10_000, 200_000)
    prepare(small, 8, "dgx1", part=part)
    graph, part = crawl(VERTICES, EDGES)
    held = graph.indptr.nbytes + graph.indices.nbytes
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory("VmRSS")
    took, shares = timed(lambda: prepare(graph, 8, "dgx1", part=part))
    peak = memory("VmHWM") - before
    relation = shares[0].plan.relation
    sizes = {"boundary_vertices": relation.num_vertices, "deliveries": relation.deliveries}
    return {**took, **sizes, "graph_bytes": held, "peak_bytes": peak, "peak_to_graph": peak / held}


TASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "import": importing,
    "cold": first_plan,
    "first": first_plan,
    "tables": tables,
    "classes": classes,
    "build": build,
}


if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]]()))
