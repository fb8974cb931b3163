"""What ``dgcl advise`` predicts against what epochs take, with 4 ranks that are threads. About ten minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

import dgcl
import dgcl.nn
from dgcl.advisor.choice import Advice, advise
from dgcl.advisor.rates import Rates, measure_rates
from dgcl.advisor.rows import ERROR
from dgcl.graph import Graph
from dgcl.partition import partition_graph
from docs.figures.framework import Figure, Run, machine, turns

PAGE = "advise.md"
RANKS, TOPOLOGY, HIDDEN = 4, "uniform4", (128, 128, 32)
GRAPHS = {"coauthor_cs": "communities", "uk_2007_05_100k": "hubs", "amazon_computers": "dense"}
LAYERS = {"gcn": dgcl.nn.GCNConv, "sage": dgcl.nn.SAGEConv}
STRATEGIES = ("halo", "cover", "tail", "grid:2,2,1", "grid:2,1,2", "grid:1,1,4")


def epochs(graph: Graph, part: np.ndarray, kind: str, rounds: int) -> dict[str, float]:
    """Median seconds of an epoch with each strategy, in turns."""

    def on_rank() -> dict[str, float] | None:
        calls: dict[str, Callable[[], Any]] = {}
        for spec in STRATEGIES:
            comm = dgcl.build_comm_info(graph, TOPOLOGY, part=part, strategy=spec)
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


def predicted(graph: Graph, part: np.ndarray, kind: str, rates: Rates) -> Advice:
    """What is said before."""
    return advise(
        graph, model=f"{kind}:{','.join(map(str, HIDDEN))}", topology=TOPOLOGY, part=part, rates=rates
    )


def accuracy(run: Run) -> Figure:
    """For each graph and model: the choice, its time over the best measured, and the correlation of ranks."""
    columns = {
        "graph": "", "model": "", "chosen": "", "best measured": "", "chosen / best": ".2f",
        "rank correlation": ".2f", "halo predicted ms": ".1f", "measured ms": ".1f",
    }  # fmt: skip

    def rows() -> Iterator[list[Any]]:
        rates = measure_rates().shared(2)  # 4 ranks on 2 cores
        for name in run.some(list(GRAPHS)):
            graph = run.graph(name)
            part = partition_graph(graph, RANKS)
            for kind in LAYERS:
                advice = predicted(graph, part, kind, rates)
                measured = epochs(graph, part, kind, 1 if run.quick else 3)
                told = {spec: advice.row(spec).seconds.total for spec in STRATEGIES}
                near = min(told.values()) * (1 + ERROR)
                chosen = next(spec for spec in STRATEGIES if told[spec] <= near)
                best = min(measured, key=lambda spec: measured[spec])
                order = spearmanr([told[s] for s in STRATEGIES], [measured[s] for s in STRATEGIES]).statistic
                yield [
                    f"{name}, {GRAPHS[name]}", kind, chosen, best, measured[chosen] / measured[best], order,
                    1e3 * told["halo"], 1e3 * measured["halo"],
                ]  # fmt: skip

    return Figure(columns, rows(), after=machine())


FIGURES = {"accuracy": accuracy}
