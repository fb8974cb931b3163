"""What ``dgcl advise`` predicts against what epochs take, with 4 ranks that are threads. About ten minutes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from dgcl.advisor.choice import advise
from dgcl.advisor.rates import read_rates
from dgcl.bench.epochs import measure_epochs
from dgcl.partition import partition_graph
from dgcl.topology import resolve_topology
from docs.figures.framework import Figure, Run, machine

PAGE = "advise.md"
RANKS, HIDDEN = 4, (128, 128, 32)
GRAPHS = {"coauthor_cs": "communities", "uk_2007_05_100k": "hubs", "amazon_computers": "dense"}
KINDS = ("gcn", "sage", "gin")
APART = 1.15


def agreement(first: dict[str, float], second: dict[str, float]) -> float | None:
    """Kendall's tau over pairs that are apart in ``second``; None where there are none."""
    pairs = [(a, b) for a, b in combinations(second, 2) if not 1 / APART < second[a] / second[b] < APART]
    signs = [(first[a] < first[b]) == (second[a] < second[b]) for a, b in pairs]
    return 2 * sum(signs) / len(signs) - 1 if signs else None


def accuracy(run: Run) -> Figure:
    """For each graph and model: the choice, its time over the best measured, and whether pairs are in order."""
    columns = {
        "graph": "", "model": "", "chosen": "", "best measured": "", "chosen / best": ".2f",
        "pairs in order": ".2f", "halo predicted ms": ".1f", "measured ms": ".1f",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        rates = read_rates("here", resolve_topology("uniform", RANKS))
        for name in run.some(list(GRAPHS)):
            graph = run.graph(name)
            part = partition_graph(graph, RANKS)
            topology = resolve_topology("host", RANKS)
            for kind in KINDS:
                model = f"{kind}:{','.join(map(str, HIDDEN))}"
                advice = advise(graph, model=model, topology=topology, part=part, rates=rates)
                measure_epochs(advice, 1 if run.quick else 5, most=99)
                measured = {row.strategy.spec: row.measured for row in advice.rows if row.measured}
                expected = {spec: advice.row(spec).seconds.total for spec in measured}
                chosen = advice.best.spec
                best = min(measured, key=lambda spec: measured[spec])
                order = agreement(expected, measured)
                yield [
                    f"{name}, {GRAPHS[name]}", kind, chosen, best, measured[chosen] / measured[best], order,
                    1e3 * expected["halo"], 1e3 * measured["halo"],
                ]  # fmt: skip

    return Figure(columns, rows(), after=machine())


FIGURES = {"accuracy": accuracy}
