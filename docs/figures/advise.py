"""What ``dgcl advise`` predicts against what epochs and ranks take, with 4 ranks; half an hour on a quiet machine."""

import ctypes
import os
from collections.abc import Iterator
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dgcl
import dgcl.nn
from dgcl.advisor.advice import Advice
from dgcl.advisor.choice import advise
from dgcl.advisor.device_rates import read_rates
from dgcl.graph import read_graph
from dgcl.partition import partition_graph
from dgcl.topology import resolve_topology
from docs.figures.framework import Figure, Run, machine, resident, turns

PAGE = "advise.md"
RANKS, HIDDEN, WIDTHS = 4, (128, 128, 32), "128,128,32"
GRAPHS = {"coauthor_cs": "communities", "uk_2007_05_100k": "hubs", "amazon_computers": "dense"}
KINDS = ("gcn", "sage", "gin")
APART = 1.15
LAYERS: dict[str, Any] = {
    "gcn": dgcl.nn.GCNConv,
    "sage": dgcl.nn.SAGEConv,
    "gin": lambda width, out: dgcl.nn.GINConv(
        nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out))
    ),
}
ATTENTION = {"gat": dgcl.nn.GATConv, "gatv2": dgcl.nn.GATv2Conv, "transformer": dgcl.nn.TransformerConv}
HELD = [
    *product(["gcn"], ["halo", "cover", "windows:4", "in-place"]),
    *product(ATTENTION, ["halo"]),
]


def agreement(first: dict[str, float], second: dict[str, float]) -> float | None:
    """Kendall's tau over pairs that are apart in ``second``; None where there are none."""
    pairs = [(a, b) for a, b in combinations(second, 2) if not 1 / APART < second[a] / second[b] < APART]
    signs = [(first[a] < first[b]) == (second[a] < second[b]) for a, b in pairs]
    return 2 * sum(signs) / len(signs) - 1 if signs else None


def epoch(comm: dgcl.Communicator, layers: Any, x: Any) -> None:
    """Train once, without an optimiser."""
    for number, layer in enumerate(layers):
        x = layer(x.relu() if number else x, comm=comm)
    nn.functional.cross_entropy(x, comm.owned_ids % x.shape[1]).backward()


def measured_epochs(advice: Advice, rounds: int) -> dict[str, float]:
    """Median seconds of an epoch with each strategy that is run layer by layer, in turns, on ranks that are threads."""
    of = advice.candidates

    def on_rank() -> dict[str, float]:
        calls: dict[str, Any] = {}
        for row in advice.rows:
            if row.refused or row.strategy.name in ("in-place", "offload"):
                continue
            comm = dgcl.build_comm_info(of.graph, of.topology, part=of.part, strategy=row.strategy)
            layers = [LAYERS[each.kind](each.width, each.out) for each in of.model.layers]
            calls[str(row.strategy)] = partial(
                epoch, comm, layers, torch.rand(comm.num_owned, of.model.widths[0])
            )
        return {spec: time.median for spec, time in turns(comm, calls, rounds).items()}

    return dgcl.launch(on_rank, RANKS)[0]


def held(paths: list[Path], kind: str, spec: str) -> tuple[int, int]:
    """Bytes that a rank takes at most in training on the last graph, and its pool's; the first has code compiled."""
    torch.set_num_threads(1)
    for path in paths:
        graph = read_graph(path).graph
        part = partition_graph(graph, RANKS)  # as it is advised on: a grid would cut parts of its own
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is not there to be used again
        before = resident("RssAnon")
        comm = dgcl.build_comm_info(graph, "uniform", strategy=spec, part=part, method="direct")
        layers = [(LAYERS | ATTENTION)[kind](*pair) for pair in pairwise(HIDDEN)]
        if spec == "in-place":
            layers = [dgcl.nn.InPlaceGCN(HIDDEN)]
        optimizer = torch.optim.Adam(each for layer in layers for each in layer.parameters())
        x = torch.rand(comm.num_owned, HIDDEN[0])
        for number in range(8):
            optimizer.zero_grad()
            epoch(comm, layers, x)
            optimizer.step()
            if number == 4:
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        peak = resident("VmHWM") - resident("RssShmem") - resident("RssFile") - before
        pool: int = comm.transport.runtime.pool.bytes_allocated  # type: ignore[attr-defined]
        comm.close()
    return peak + pool, pool


def memory(run: Run) -> Figure:
    """For each graph, model and strategy: bytes of the fullest rank, and pools of all, predicted and measured."""
    columns = {
        "graph": "", "model": "", "strategy": "", "predicted MB": ".1f", "measured MB": ".1f",
        "predicted / measured": ".2f", "pools": ".2f",
    }  # fmt: skip
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

    def rows() -> Iterator[list[Any]]:
        for name, (kind, spec) in product(run.some(list(GRAPHS)), run.some(HELD)):
            path = run.path(name)
            row = advise(read_graph(path).graph, model=f"{kind}:{WIDTHS}", topology="uniform4").row(spec)
            paths = [run.graphs / "cora.npz", path]
            ranks = dgcl.launch(held, RANKS, paths, kind, spec, ranks="processes")
            peak, pools = max(ranks)[0], sum(pool for _, pool in ranks)
            pool = sum(row.device_bytes["exchange buffers"]) / pools
            yield [name, kind, spec, row.device / 1e6, peak / 1e6, row.device / peak, pool]

    text = "{measured MB:.1f} MB, {predicted / measured:.2f}"
    small = ("{model}, {strategy}".format_map, "{graph}".format_map, text.format_map)
    return Figure(columns, rows(), after=machine(), small=small)


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
                advice = advise(graph, model=f"{kind}:{WIDTHS}", topology=topology, part=part, rates=rates)
                measured = measured_epochs(advice, 1 if run.quick else 5)
                expected = {spec: advice.row(spec).seconds.total for spec in measured}
                chosen = str(advice.best)
                best = min(measured, key=lambda spec: measured[spec])
                order = agreement(expected, measured)
                yield [
                    f"{name}, {GRAPHS[name]}", kind, chosen, best, measured[chosen] / measured[best], order,
                    1e3 * expected["halo"], 1e3 * measured["halo"],
                ]  # fmt: skip

    text = (
        "{chosen}, {chosen / best:.2f}, {pairs in order:.2f}; {halo predicted ms:.1f}, {measured ms:.1f} ms"
    )
    small = ("{graph}".format_map, "{model}".format_map, text.format_map)
    return Figure(columns, rows(), after=machine(), small=small)


FIGURES = {"accuracy": accuracy, "memory": memory}
