"""Public exchanges of halo rows beside ours and a plain all-to-all; a peer runs from a checkout that you name.

    python -m docs.figures peers --write --peer fairchem=PATH --peer anemoi=PATH --peer dgraph=PATH --peer sar=PATH

All are given the same edges, METIS parts and rows. An adapter below is what a user of that library writes; `_stub`
stands for modules that a peer merely imports. Whoever is absent is left out. A quarter of an hour.
"""

import enum
import inspect
import json
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import numpy as np
import torch
import torch.distributed as dist
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from torch import Tensor
from torch.distributed.nn.functional import all_to_all_single

import dgcl
from dgcl.bench.turns import Timing
from dgcl.graph import as_graph
from dgcl.partition import partition_graph
from dgcl.ranks.context import context
from docs.figures.framework import Figure, Run, both_ways, communities, machine, resident, turns

PAGE = "compared.md"
RANKS, WIDTH, CHECKED, TIMEOUT = 4, 128, 16, 120.0


@dataclass(frozen=True)
class Share:
    """What a rank may take of an input: all edges (tails, heads), all owners, its vertices, their in-edges."""

    rank: int
    ends: Tensor
    part: Tensor
    owned: Tensor
    edges: Tensor
    checkout: Path | None


def load(path: Path, checkout: Path | None) -> Share:
    """This rank's share of an input."""
    ends, part = (torch.from_numpy(each) for each in np.load(path).values())
    rank = dist.get_rank()
    return Share(rank, ends, part, (part == rank).nonzero()[:, 0], ends[:, part[ends[1]] == rank], checkout)


def sizes(share: Share) -> list[int]:
    """Vertices of each rank."""
    if bool((share.part.diff() < 0).any()):
        raise ValueError("its parts are ranges of ids")
    return torch.bincount(share.part).tolist()


@dataclass(frozen=True)
class Peer:
    """An exchange: owned rows to owned and halo rows, and the graph that DGL's layers take with them."""

    rows: Callable[[Tensor], Tensor]
    graph: Callable[[], Any]
    fused: bool = False


def block(sources: Tensor, heads: Tensor, num_owned: int) -> Any:
    """DGL's graph of local ids."""
    import dgl

    return dgl.create_block((sources, heads), max(int(sources.max()) + 1, num_owned), num_owned)


def plain(share: Share, functional: bool = False) -> Peer:
    """The usual code in plain torch; its gradient written by hand, or that of `torch.distributed.nn.functional`."""
    (tails, heads), owned, part = share.edges, share.owned, share.part
    halo = tails[part[tails] != share.rank].unique()
    halo = halo[part[halo].argsort(stable=True)]
    receives = torch.bincount(part[halo], minlength=RANKS)
    sends = torch.empty_like(receives)
    dist.all_to_all_single(sends, receives)
    sends, receives = sends.tolist(), receives.tolist()
    requested = halo.new_empty(sum(sends))
    dist.all_to_all_single(requested, halo, sends, receives)
    number = torch.empty_like(part)
    number[torch.cat([owned, halo])] = torch.arange(len(owned) + len(halo))
    index = number[requested]

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            halo = x.new_empty(sum(receives), *x.shape[1:])
            dist.all_to_all_single(halo, x[index], receives, sends)
            return torch.cat([x, halo])

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            arrived = grad.new_empty(len(index), *grad.shape[1:])
            dist.all_to_all_single(arrived, grad[len(owned) :].contiguous(), sends, receives)
            return grad[: len(owned)].index_add(0, index, arrived)

    def rows(x: Tensor) -> Tensor:
        halo = x.new_empty(sum(receives), *x.shape[1:])
        return torch.cat([x, all_to_all_single(halo, x[index], receives, sends)])

    return Peer(
        rows if functional else AllToAll.apply, partial(block, number[tails], number[heads], len(owned))
    )


def ours(share: Share) -> Peer:
    """The graph on rank 0."""
    graph = None if share.rank else as_graph(share.ends, len(share.part))
    comm = dgcl.build_comm_info(graph, part=share.part)
    return Peer(partial(dgcl.graph_allgather, comm=comm), lambda: comm.local_graph("dgl"))


def ours_collective(share: Share) -> Peer:
    """Each rank gives its own edges; no memory is shared."""
    comm = dgcl.build_from_local(share.owned, share.edges, channel="collective")
    return Peer(partial(dgcl.graph_allgather, comm=comm), lambda: comm.local_graph("dgl"))


def _stub(name: str, **members: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


def fairchem(share: Share) -> Peer:
    """`all_to_all_collect` of fairchem's graph parallelism."""
    for name in ("fairchem", "fairchem.core", "fairchem.core.common", "fairchem.core.common.parallelism"):
        _stub(name, __path__=[str(share.checkout / "src" / name.replace(".", "/"))])
    _stub("fairchem.core.common.utils", StrEnum=enum.StrEnum)
    from fairchem.core.common import gp_utils
    from fairchem.core.common.parallelism import graph_parallel_a2a as a2a

    if not gp_utils.initialized():
        gp_utils.setup_graph_parallel_groups(RANKS, "gloo")
    context = a2a.build_gp_context(share.edges, share.part, share.rank, RANKS)
    return Peer(
        lambda x: torch.cat([x, a2a.all_to_all_collect(x, context)]),
        lambda: block(*context.edge_index_local, len(share.owned)),
    )


def anemoi(share: Share) -> Peer:
    """`halo_exchange` of anemoi-models."""
    sys.path.insert(0, str(share.checkout / "models/src"))
    from anemoi.models.distributed.graph import halo_exchange
    from anemoi.models.distributed.halo import build_halo_info
    from anemoi.models.distributed.khop_edges import GraphPartition

    counts = torch.bincount(share.part[share.ends[1]], minlength=RANKS).tolist()
    num_nodes = (len(share.part),) * 2
    partition = GraphPartition(num_nodes, share.ends.shape[1], RANKS, sizes(share), counts)
    info = build_halo_info(partition, share.ends, dist.group.WORLD)
    return Peer(
        lambda x: halo_exchange(x, info, dist.group.WORLD),
        lambda: block(*info.edge_index_local, info.num_local_nodes),
    )


def dgraph(share: Share) -> Peer:
    """`HaloExchange` of DGraph, which owns edges by their first end; made for GPUs, whose sorts are stable."""
    sys.path.insert(0, str(share.checkout))
    from DGraph import Communicator
    from DGraph.distributed import HaloExchange, build_communication_pattern

    sort = partial(torch.argsort, stable=True)
    with mock.patch.object(Tensor, "cuda", lambda self: self), mock.patch.object(torch, "argsort", sort):
        pattern = build_communication_pattern(share.ends.flip(0).T, share.part, share.rank, RANKS)
    exchange = HaloExchange(Communicator("nccl"))  # it takes the group that is there
    return Peer(
        lambda x: torch.cat([x, exchange(x, pattern)]),
        lambda: block(*pattern.local_edge_list.T.flip(0), pattern.num_local_vertices),
    )


def sar(share: Share) -> Peer:
    """SAR's graph, which exchanges in `update_all`, part by part."""
    _stub("ifaddr")
    sys.path.insert(0, str(share.checkout))
    import dgl
    import sar
    from dgl.distributed.graph_partition_book import RangePartitionBook
    from sar.common_tuples import PartitionData, ShardEdgesAndFeatures

    sar.initialize_comms(share.rank, RANKS, "", "gloo")
    kind, (tails, heads) = ("_N", "_E", "_N"), share.edges
    vertices, edges = (np.cumsum([0, *counts]) for counts in (sizes(share), [len(tails)] * RANKS))
    ranges = np.stack([vertices[:-1], vertices[1:]], 1)
    spans = {kind: np.stack([edges[:-1], edges[1:]], 1)}  # of edge ids, which nobody uses
    book = RangePartitionBook(share.rank, RANKS, {"_N": ranges}, spans, {"_N": 0}, {kind: 0})
    kinds, owners = torch.zeros(len(tails), dtype=torch.int32), share.part[tails]
    shards = [
        ShardEdgesAndFeatures(
            (tails[owners == peer], heads[owners == peer]), {dgl.ETYPE: kinds[owners == peer]}
        )
        for peer in range(RANKS)
    ]
    nodes = {dgl.NTYPE: torch.zeros(len(share.owned), dtype=torch.int32)}
    data = PartitionData(shards, list(map(tuple, ranges.tolist())), nodes, ["_N"], [kind], book)
    graph = sar.construct_full_graph(data)
    return Peer(lambda x: x, lambda: graph, fused=True)


ADAPTERS: dict[str, Callable[[Share], Peer]] = {
    "dgcl": ours, "dgcl, collectives": ours_collective, "plain": plain,
    "plain, functional": partial(plain, functional=True), "fairchem": fairchem, "anemoi": anemoi, "dgraph": dgraph,
    "sar": sar,
}  # fmt: skip


def summed(peer: Peer, graph: Any, x: Tensor) -> Tensor:
    """Each owned vertex's sum over its in-edges."""
    import dgl.function as fn

    with graph.local_scope():
        graph.srcdata["x"] = peer.rows(x)
        graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
        return graph.dstdata["y"]


def check(share: Share, name: str) -> list[float]:
    """Seconds of set-up twice, peak, bytes forward; how much is wrong of sums, gradients, second derivatives."""
    dist.barrier()
    results: list[Any] = []
    for _ in range(2):
        begin = time.perf_counter()
        peer = ADAPTERS[name](share)
        dist.barrier()
        results.append(time.perf_counter() - begin)
    x = torch.zeros(len(share.owned), WIDTH, requires_grad=True)
    rows = peer.rows(x)
    rows.backward(torch.zeros_like(rows))
    moved, peak, graph = len(rows) - len(x), resident("VmHWM"), peer.graph()
    (tails, heads), n = share.ends.numpy(), len(share.part)
    adjacency = csr_array((np.ones(len(tails)), (heads, tails)), (n, n))
    whole = np.random.default_rng(0).integers(0, 8, (n, CHECKED)).astype(float)  # sums are exact in float32
    own = torch.from_numpy(whole).float()[share.owned]
    x = own.clone().requires_grad_()
    (slope,) = torch.autograd.grad(summed(peer, graph, x).square().sum() / 2, x, create_graph=True)
    second = torch.autograd.grad(slope, x, own)[0] if slope.requires_grad else torch.zeros_like(x)
    sums = summed(peer, graph, x)
    expected = (adjacency @ whole, adjacency.T @ whole, adjacency.T @ (adjacency @ whole))
    counts = [float(moved), float(sums.numel())]
    for result, right in zip((sums, *torch.autograd.grad(sums, x, own), second), expected, strict=True):
        right = torch.from_numpy(right)[share.owned]
        off = result.detach().double() - right
        counts += [int((off != 0).sum()), float(off.square().sum()), float(right.square().sum())]
    ranks = context.require_control().exchange([*counts, peak])
    moved, size, wrong, _, _, lost, _, _, *second_off, _ = np.sum(ranks, 0)
    results += [max(each[-1] for each in ranks) / 1e6, moved * WIDTH * 4e-6, wrong / size, lost / size]
    return [float(each) for each in (*results, (second_off[1] / second_off[2]) ** 0.5)]


def checks(paths: list[Path], name: str, checkout: Path, results: Path) -> None:
    """One input after the other; what is known is on rank 0's disk if the next one ends the processes."""
    for path in paths:
        result = check(load(path, checkout), name)
        if dist.get_rank() == 0:
            with results.open("a") as file:
                print(json.dumps(result), file=file)


def checked(paths: list[Path], name: str, checkout: Path, folder: Path) -> Iterator[list[float] | str]:
    """The results of each input, or why there are none."""
    number = 0
    while number < len(paths):
        results, error = folder / f"{name}{number}", ""
        results.touch()
        try:
            dgcl.launch(
                checks, RANKS, paths[number:], name, checkout, results, ranks="processes", timeout=TIMEOUT
            )
        except Exception as ended:
            error = f"{type(ended).__name__}: {str(ended).splitlines()[0][:70]}".replace("|", "/")
        outcomes = [*map(json.loads, results.read_text().splitlines()), *([error] if error else [])]
        number += len(outcomes)
        print(name, *outcomes, sep="\n", file=sys.stderr, flush=True)
        yield from outcomes


def step(peer: Peer, graph: Any, layers: Any, optimizer: Any, x: Tensor, n: int) -> float:
    """The loss of an epoch."""
    optimizer.zero_grad()
    for layer in layers:
        x = layer(graph, peer.rows(torch.relu(x)))
    loss = x.square().sum() / n
    loss.backward()
    for parameter in layers.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    dist.all_reduce(loss.detach())
    return loss.item()


def timed(sound: list[tuple[Path, dict[str, Path]]], rounds: int) -> list[dict[str, list[Any]]]:
    """Of each input's exchanges: the loss of three layers; forward, there and back and an epoch in turns."""
    import dgl.nn

    results = []
    for path, checkouts in sound:
        calls, epochs, losses = {}, {}, {}
        for name, checkout in checkouts.items():
            share = load(path, checkout)
            peer = ADAPTERS[name](share)
            graph, n = peer.graph(), len(share.part)
            torch.manual_seed(0)
            x = torch.rand(n, WIDTH)[share.owned].requires_grad_()
            layers = torch.nn.ModuleList(dgl.nn.SAGEConv(WIDTH, WIDTH, "mean") for _ in range(3))
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
            epochs[name, "epoch"] = partial(step, peer, graph, layers, optimizer, x.detach(), n)
            losses[name] = epochs[name, "epoch"]()
            if not peer.fused:
                grad = torch.rand_like(peer.rows(x))
                calls[name, "forward"] = partial(peer.rows, x)
                calls[name, "both"] = lambda peer=peer, x=x, grad=grad: peer.rows(x).backward(grad)
        comm = dgcl.current_communicator()
        times = turns(comm, calls, rounds) | turns(comm, epochs, min(rounds, 3))
        columns = ("forward", "both", "epoch")
        results.append({n: [loss, *(times.get((n, c)) for c in columns)] for n, loss in losses.items()})
    return results


def inputs(run: Run) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Names, edges by head, and METIS parts; ids are those of a part one after the other, but for the last."""
    rng, side = np.random.default_rng(0), 8 if run.quick else 40
    mesh = as_graph(nx.convert_node_labels_to_integers(nx.grid_graph([side] * 3)))
    graphs = {"mesh": both_ways(mesh, loops=False)}
    if not run.quick:
        points = rng.random((40_000, 3))
        near = cKDTree(points).query(points, 9)[1]
        graphs |= {
            "social": both_ways(communities(20_000, 200_000, 500), loops=False),
            "8 nearest, directed": as_graph(
                np.stack([near[:, 1:].ravel(), near[:, 0].repeat(8)]), len(points)
            ),
            "uk_2007_05_100k, directed": run.graph("uk_2007_05_100k"),
        }
    for name, graph in [*graphs.items(), ("mesh, scrambled", graphs["mesh"])]:
        part = np.asarray(partition_graph(graph, RANKS)).astype(np.int64)
        order = rng.permutation(len(part)) if "scrambled" in name else np.argsort(part, kind="stable")
        ends = np.argsort(order)[np.stack(graph.edges())]
        yield name, ends[:, np.argsort(ends[1], kind="stable")], part[order]


def medians(time: Timing | None, our: Timing) -> list[float | None]:
    """The median, ms, and the ratio to ours."""
    return [None, None] if time is None else [1e3 * time.median, time.ratio(our)]


def outcome(row: dict[str, Any]) -> str:
    """Whether an exchange is right, for a cell of the page."""
    if row["refused"]:
        return "refused" if row["refused"].startswith("ValueError") else "ends in an error"
    if row["sums wrong"]:
        return f"sums wrong, {row['sums wrong']:.1%}"
    return f"{row['second derivative off by']:.1%}"


def ratios(row: dict[str, Any]) -> str:
    """The times over ours, forward, there and back and of an epoch."""
    times = (row[f"{what}, it / dgcl"] for what in ("forward", "and back", "epoch"))
    return ", ".join("-" if time is None else f"{time:.2f}" for time in times)


def compared(run: Run) -> list[Figure]:
    """Who is compared; what is right; what it costs."""
    names = [name for name in ADAPTERS if name in run.peers or name.startswith(("dgcl", "plain"))]
    about, right, cost, sound = [], [], [], []
    for name, adapter in ADAPTERS.items():
        ask = ["git", "-C", str(run.peers.get(name, ".")), "log", "-1", "--format=%h of %cs"]
        commit = subprocess.run(ask, capture_output=True, text=True).stdout.strip() or "no commit"
        lines = len(inspect.getsource(getattr(adapter, "func", adapter)).splitlines()) - 1
        about.append([name, commit if name in names else "absent, skipped", lines])
    with tempfile.TemporaryDirectory() as temporary:
        folder, titles, paths = Path(temporary), [], []
        for title, ends, part in inputs(run):
            titles.append(title)
            paths.append(folder / f"{title}.npz")
            np.savez(paths[-1], ends=ends, part=part)
        results = {name: list(checked(paths, name, run.peers.get(name), folder)) for name in names}
        for number, title in enumerate(titles):
            rows = {name: results[name][number] for name in names}
            failed = {name: result for name, result in rows.items() if isinstance(result, str)}
            for name, result in rows.items():
                right.append(
                    [title, name, *([None] * 3 if name in failed else result[4:]), failed.get(name, "")]
                )
            good = {
                name: run.peers.get(name)
                for name in names
                if name not in failed and rows[name][4:6] == [0, 0]
            }
            sound.append((paths[number], good))
        in_turns = dgcl.launch(timed, RANKS, sound[:-1], run.rounds, ranks="processes")[0]
    for number, times in enumerate(in_turns):
        loss, *own_times = times["dgcl"]
        for name, (its_loss, *its) in times.items():
            if abs(its_loss / loss - 1) > 1e-5:
                raise ValueError(f"{name}, {titles[number]}: a loss of {its_loss} for {loss}")
            first, again, peak, *_ = results[name][number]
            alone = [None, again, None] if number else [first, again, peak]
            pairs = [value for pair in map(medians, its, own_times) for value in pair]
            cost.append([titles[number], name, *alone, *pairs])
    columns = {"input": "", "exchange": ""}
    wrong = dict.fromkeys(("sums wrong", "gradients wrong", "second derivative off by"), ".1%")
    costs = {"set-up, s": ".2f", "again": ".2f", "peak, MB": ".0f"}
    for what in ("forward", "and back", "epoch"):
        costs |= {f"{what}, ms": ".1f", f"{what}, it / dgcl": ".2f"}
    ends = ("{exchange}".format_map, "{input}".format_map)
    return [
        Figure({"exchange": "", "commit": "", "lines": ""}, about, machine()),
        Figure({**columns, **wrong, "refused": ""}, right, "### Right or not", small=(*ends, outcome)),
        Figure({**columns, **costs}, cost, "### What it costs", small=(*ends, ratios)),
    ]


FIGURES = {"compared": compared}
