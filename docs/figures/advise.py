"""What ``dgcl advise`` predicts against what epochs take, with 4 ranks that are threads. About ten minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import dgcl
import dgcl.nn
from dgcl.advisor.advice import Advice
from dgcl.advisor.choice import advise
from dgcl.advisor.epoch import ERROR
from dgcl.advisor.rates import Rates, read_rates
from dgcl.graph import Graph
from dgcl.partition import partition_graph
from dgcl.topology import Topology, resolve_topology
from docs.figures.framework import Figure, Run, machine, turns

PAGE = "advise.md"
RANKS, HIDDEN = 4, (128, 128, 32)
GRAPHS = {"coauthor_cs": "communities", "uk_2007_05_100k": "hubs", "amazon_computers": "dense"}


def gin(width: int, out: int) -> torch.nn.Module:
    """As the grammar means it: two products, and ReLU between them."""
    linear = torch.nn.Linear
    return dgcl.nn.GINConv(torch.nn.Sequential(linear(width, out), torch.nn.ReLU(), linear(out, out)))


LAYERS: dict[str, Any] = {"gcn": dgcl.nn.GCNConv, "sage": dgcl.nn.SAGEConv, "gin": gin}
APART = 1.15
STRATEGIES = ("halo", "cover", "tail", "grid:2,2,1", "grid:2,1,2", "grid:1,1,4")


def epochs(graph: Graph, topology: Topology, part: np.ndarray, kind: str, rounds: int) -> dict[str, float]:
    """Median seconds of an epoch with each strategy, in turns."""

    def on_rank() -> dict[str, float] | None:
        calls: dict[str, Callable[[], Any]] = {}
        for spec in STRATEGIES:
            comm = dgcl.build_comm_info(graph, topology, part=part, strategy=spec)
            layers = torch.nn.ModuleList(LAYERS[kind](*pair) for pair in pairwise(HIDDEN))
            x = torch.rand(comm.num_owned, HIDDEN[0])
            target = comm.owned_ids % HIDDEN[-1]

            def epoch(
                comm: dgcl.Communicator = comm, layers: Any = layers, x: Any = x, y: Any = target
            ) -> None:
                h = torch.relu(layers[0](x, comm))
                F.cross_entropy(layers[1](h, comm), y).backward()

            epoch()
            calls[spec] = epoch
        times = turns(comm, calls, rounds)
        return {spec: times[spec].median for spec in calls} if comm.rank == 0 else None

    found: dict[str, float] = dgcl.launch(on_rank, RANKS)[0]
    return found


def here(graph: Graph, part: np.ndarray) -> Topology:
    """This host, as set-up measures it."""
    return dgcl.launch(lambda: dgcl.build_comm_info(graph, part=part).plan.topology, RANKS)[0]


def predicted(graph: Graph, topology: Topology, part: np.ndarray, kind: str, rates: Rates) -> Advice:
    """What is said before."""
    model = f"{kind}:{','.join(map(str, HIDDEN))}"
    return advise(graph, model=model, topology=topology, part=part, rates=rates)


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
            topology = here(graph, part)
            for kind in LAYERS:
                advice = predicted(graph, topology, part, kind, rates)
                measured = epochs(graph, topology, part, kind, 1 if run.quick else 5)
                expected = {spec: advice.row(spec).seconds.total for spec in STRATEGIES}
                near = min(expected.values()) * (1 + ERROR)
                chosen = next(spec for spec in STRATEGIES if expected[spec] <= near)
                best = min(measured, key=lambda spec: measured[spec])
                order = agreement(expected, measured)
                yield [
                    f"{name}, {GRAPHS[name]}", kind, chosen, best, measured[chosen] / measured[best], order,
                    1e3 * expected["halo"], 1e3 * measured["halo"],
                ]  # fmt: skip

    return Figure(columns, rows(), after=machine())


FIGURES = {"accuracy": accuracy}
