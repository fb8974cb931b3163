"""``dgcl.Offload``: rows in and out, the number of chunks that fits, and arguments that cannot be."""

import mmap
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dgcl
from dgcl.offload.offload_prediction import GRAPH_BYTES, host_bytes
from dgcl.planner.reading.render import size
from dgcl.prepare.part_files import save_parts
from dgcl.prepare.shares import prepare_inputs
from dgcl.transport.buffer_memory import pool_bytes
from tests.dgcl.offload.sets import random_graph
from tests.support.exchanges import toy_24

GRAPH = random_graph(30, 110, 3)


def connected(function: Callable[[dgcl.Communicator], Any], world_size: int = 2, **options: Any) -> list[Any]:
    def run() -> Any:
        comm = dgcl.build_comm_info(GRAPH, "uniform", **{"method": "direct", **options})
        result = function(comm)
        comm.close()
        return result

    return dgcl.launch(run, world_size)


def test_rows_come_back_in_global_order(tmp_path):
    features = np.arange(60.0).reshape(30, 2)

    def run(comm: dgcl.Communicator):
        off = dgcl.Offload(comm, chunks=5, store=tmp_path)
        x = off.dispatch_features(features if comm.rank == 0 else None)
        ids = off.comm.owned_ids
        assert x.equal(torch.from_numpy(features)[ids])
        assert sorted(ids.tolist()) == comm.owned_ids.tolist()
        labels = off.dispatch_features(torch.arange(30))
        assert labels.equal(ids)
        assert off.comm.collect(x, None).equal(torch.from_numpy(features))
        off.close()
        off.close()

    connected(run)


def test_toy_graph_moves_the_published_rows():
    def run() -> str:
        comm = dgcl.build_comm_info(toy_24(), "uniform", part=np.arange(24) * 2 // 24)
        off = dgcl.Offload(comm, chunks=3, chunk_by="range")
        x = off.dispatch_features(torch.ones(24, 8))
        off.layer(torch.nn.Linear(8, 6), x, aggregate="sum", keep=True)
        return f"{off.describe()} {off.account.rows['loaded']} {off.account.rows['exchanged']}"

    for text in dgcl.launch(run, 2):
        assert "loads 26 rows (chunks read 50, batches 44, beyond the batch before 26) and moves 14" in text
        assert text.endswith("13 7")
        assert "10 slots" in text


def test_example_of_the_page_runs(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    page = (Path(__file__).parents[3] / "docs" / "offload.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    code = found[1].replace("/scratch", str(tmp_path))

    def run():
        names: dict[str, Any] = {"dgcl": dgcl, "torch": torch, "torch_geometric": SimpleNamespace(nn=pyg)}
        names |= {
            "graph": GRAPH,
            "features": torch.ones(30, 602),
            "labels": torch.arange(30),
            "mask": torch.ones(30).bool(),
        }
        exec(code, names)
        assert names["logits"].shape == (30, 41)
        assert names["model"].first.conv.lin_l.weight.grad.abs().sum() > 0

    dgcl.launch(run, 1)


def test_as_few_chunks_as_fit():
    def run(comm: dgcl.Communicator):
        widths = (50_000, 32)
        one = dgcl.Offload(comm, chunks=1, widths=widths)
        peak = one.memory().device.total
        assert dgcl.Offload(comm, memory_limit="1GB", widths=widths).num_chunks == 1
        peaks = comm.control.exchange(peak)
        less = dgcl.Offload(comm, memory_limit=max(peaks) - 1, widths=widths)
        assert less.num_chunks > 1
        assert less.memory().device.total < max(peaks)
        with pytest.raises(
            ValueError, match=r"memory_limit of 1000 bytes is too little .* vertex \d+ with its \d+ in-edges"
        ):
            dgcl.Offload(comm, memory_limit=1000, widths=widths)

    connected(run)


class Wasteful(torch.nn.Module):
    """Makes many times as much as it gives."""

    def __init__(self, times: int):
        super().__init__()
        self.times, self.product = times, torch.nn.Linear(8, 8)

    def forward(self, g: Any, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        return self.product(dst.repeat(1, self.times)[:, :8]) + torch.rand(()) * 0


@pytest.mark.parametrize("times, ranks", [(1, 1), (2000, 1), (8000, 2)])
def test_chunks_are_as_many_as_layers_need(times, ranks):
    """By what they make inside themselves, which a rehearsal measures, and which draws no random numbers."""

    def run(comm: dgcl.Communicator):
        layers = torch.nn.ModuleList([Wasteful(times), Wasteful(1)])
        drawn = torch.random.get_rng_state()
        off = dgcl.Offload(comm, memory_limit="3MB", widths=(8, 8, 8), layers=layers)
        # threads share a generator, and the other may make its layers meanwhile
        assert ranks > 1 or torch.equal(torch.random.get_rng_state(), drawn)
        predicted = off.memory().device
        h = off.dispatch_features(torch.ones(comm.num_nodes, 8))
        for layer in layers:
            h = off.layer(layer, h)
        h.sum().backward()
        assert off.memory().device.total <= 3_000_000
        assert off.memory().device.total == pytest.approx(predicted.total, rel=0.1)
        return off.num_chunks

    numbers = connected(run, ranks)
    assert (numbers[0] > 1) == (times > 1)


class Counting(torch.nn.Module):
    """Gives a tuple, counts its calls in two buffers, and may refuse zeros."""

    def __init__(self, refuses: bool = False):
        super().__init__()
        self.refuses, self.product = refuses, torch.nn.Linear(8, 8)
        for name in "ab":
            self.register_buffer(name, torch.zeros(()))

    def forward(self, g: Any, src: torch.Tensor, dst: torch.Tensor) -> Any:
        self.a += 1
        self.b = self.b + 1
        if self.refuses and not src.any():
            raise RuntimeError("no zeros")
        return self.product(dst), self.product(dst.repeat(1, 100)[:, :8])


def test_layers_that_are_measured_stay_as_they_are():
    def run(comm: dgcl.Communicator):
        layer = Counting()
        off = dgcl.Offload(comm, chunks=3, widths=(8, 8), layers=[layer])
        assert off._arrangement.inside[0] > 100 * 8 * 4
        assert layer.a == layer.b == 0
        with pytest.raises(
            ValueError, match=r"layers\[0\] fails on .*float32, 8 wide: no zeros.*None in its place"
        ):
            dgcl.Offload(comm, chunks=3, widths=(8, 8), layers=[Counting(comm.rank == 1)])

    connected(run)


def test_a_limit_counts_what_layers_make():
    def run(comm: dgcl.Communicator):
        off = dgcl.Offload(comm, memory_limit="3MB", widths=(8, 8))
        x = off.dispatch_features(torch.ones(comm.num_nodes, 8)).requires_grad_()
        off.layer(lambda g, src, dst: dst.repeat(1, 50)[:, :8], x, parameters=()).sum().backward()
        assert off.memory().device.inside >= max(map(len, off._arrangement.rows)) * 50 * 8 * 4 * 2
        with pytest.raises(
            (ValueError, dgcl.CommError),
            match=r"layer 2 \(function\) takes more than the \d+ bytes that memory_limit",
        ):
            off.layer(lambda g, src, dst: dst.repeat(1, 10_000)[:, :8], x, parameters=())

    connected(run)


@pytest.mark.sample(2, whole=True)
@pytest.mark.parametrize("in_files", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("widths", [(8, 8, 8, 8), (16, 8, 4), (4, 8, 32), (4, 32, 4, 4)])
def test_host_memory_is_what_lives(tmp_path, widths: tuple[int, ...], kept: bool, in_files: bool):
    """By name and to the byte, in the second step as in the first; of equal widths by the published formula, too."""

    def step(off: dgcl.Offload, layers: list[torch.nn.Linear], x: torch.Tensor, labels: torch.Tensor):
        h, options = x, {"aggregate": "mean", "keep": True} if kept else {}
        for layer in layers[:-1]:
            h = off.layer(layer, h, **options) if kept else off.layer(Sums(layer), h)
        last = layers[-1]
        loss = off.cross_entropy(off.layer(last if kept else Sums(last), h, **options), labels)
        del h
        loss.backward()

    def run(comm: dgcl.Communicator):
        off = dgcl.Offload(
            comm, chunks=3, widths=widths, method="direct", store=tmp_path if in_files else None
        )
        layers = [torch.nn.Linear(*pair) for pair in pairwise(widths)]
        x = off.dispatch_features(torch.ones(30, widths[0]))
        for _ in range(2):
            step(off, layers, x, off.dispatch_features(torch.arange(30) % widths[-1]))
            expected = host_bytes(off.num_owned, widths, kept=kept)
            assert off.store.peak == {name: count for name, count in vars(expected).items() if count}
        assert off.host_peak == expected.total
        assert f"; host memory {size(off.host_peak)} at most: inputs" in off.describe()
        told = off.memory()
        assert (told.host_kept if kept else told.host) == expected
        assert told.host_peak == off.store.peak
        assert told.host_now == {"inputs": off.num_owned * 4 * widths[0]}
        if widths == (8, 8, 8, 8):
            assert off.host_peak == off.num_owned * 4 * (8 * 3 + 16 + 8 * kept)
        off.close()

    connected(run)


def test_what_does_not_fit_is_not_begun(monkeypatch):
    """Graphs are kept where they fit into what is free, and said; rows that do not fit are refused."""

    def run(comm: dgcl.Communicator):
        off = dgcl.Offload(comm, chunks=3)
        assert off.memory().graphs == GRAPH_BYTES * comm.local.num_edges
        assert "graphs of all chunks kept" in off.describe()
        monkeypatch.setattr("dgcl.offload.offload.available_memory", lambda: 1000)
        monkeypatch.setattr("dgcl.offload.host_store.available_memory", lambda: 1000)
        assert dgcl.Offload(comm, chunks=3).memory().graphs == 0
        with pytest.raises(
            ValueError, match=r"widths: rows take \d+ bytes, and 1000 are free in memory. Ways out"
        ):
            dgcl.Offload(comm, chunks=3, widths=(8, 6, 32, 4))

    connected(run)


def test_edges_stay_in_part_files(tmp_path):
    """A rank that loaded its part has its edges mapped, one chunk's cut out at a time; rows are those of the graph."""
    save_parts(tmp_path, prepare_inputs(GRAPH, 2, "uniform", method="direct"))
    features = torch.arange(60.0).view(30, 2)

    def run() -> Any:
        comm = dgcl.load_comm_info(tmp_path)
        off = dgcl.Offload(comm, chunks=3, method="direct", keep_graphs=False)
        edges: Any = comm.local.indices
        while isinstance(edges, np.ndarray):
            edges = edges.base
        assert isinstance(edges, memoryview)
        assert isinstance(edges.obj, mmap.mmap)
        h = off.layer(Sums(torch.nn.Identity()), off.dispatch_features(features))
        assert not off._machinery.graphs._kept
        found = off.comm.collect(h, None)
        off.close()
        comm.close()
        return found

    sources, heads = (torch.from_numpy(ends.astype(np.int64)) for ends in GRAPH.edges())
    expected = torch.zeros(30, 2).index_add_(0, heads, features[sources])
    for found in dgcl.launch(run, 2):
        assert found.equal(expected)


class Sums(torch.nn.Module):
    """A layer that sums itself."""

    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, g: Any, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(g.sum(src))
        return out


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, r"one of chunks and memory_limit must be given \(got chunks=None and memory_limit=None\)"),
        ({"chunks": 0}, r"chunks must be an integer from 1 to 1024 \(got 0\)"),
        ({"chunks": 10**6}, r"chunks must be an integer from 1 to 1024 \(got 1000000\)"),
        (
            {"chunks": 2, "slots": 2.5},
            r"slots must be an integer >= 1 \(got 2.5\)",
        ),
        ({"chunks": 2, "widths": (2, "x")}, r"widths must be given .* as integers.* \(got \(2, 'x'\)\)"),
        (
            {"chunks": 2, "dtype": "float32"},
            r"dtype must be a torch.dtype \(got 'float32'\)",
        ),
        ({"chunks": 2, "store": 5}, r"store must be a path, as text or a pathlib.Path \(got 5\)"),
        ({"chunks": 2, "store": ""}, r"store must be a path \(got ''\)"),
        ({"memory_limit": "1GB"}, "widths must be given with memory_limit"),
        (
            {"chunks": 2, "widths": (8, 8), "layers": []},
            r"layers must be 1 modules, as widths says \(got \[\]\)",
        ),
        (
            {"chunks": 2, "widths": (8, 8), "layers": iter([None])},
            r"layers must be 1 modules, .*got <list_iter",
        ),
        ({"chunks": 2, "layers": [None]}, "widths must be given with memory_limit or layers"),
        ({"chunks": 2, "kind": "networkx"}, "kind must be one of csr, pyg, dgl"),
        ({"chunks": 2, "store": "/nowhere/at/all"}, "store must be a folder"),
        ({"chunks": 2, "chunk_by": "louvain"}, "chunk_by must be one of"),
        ({"chunks": 2, "method": "magic"}, "method must be one of"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], message: str):
    def run(comm: dgcl.Communicator):
        with pytest.raises((TypeError, ValueError), match=message):
            dgcl.Offload(comm, **options)

    connected(run)


def test_a_rank_without_room_is_told_to_all(tmp_path, monkeypatch):
    def no_room(*arguments: Any):
        raise OSError(28, "store: 1 GB of rows do not fit")

    def run(comm: dgcl.Communicator):
        off = dgcl.Offload(comm, chunks=2, store=tmp_path)
        if comm.rank == 1:
            monkeypatch.setattr(off.store, "empty", no_room)
        with pytest.raises((OSError, ValueError), match="store: 1 GB of rows do not fit"):
            off.dispatch_features(torch.ones(30, 2))

    connected(run)


def test_other_placements_and_ranks_that_disagree():
    def placed(comm: dgcl.Communicator):
        with pytest.raises(ValueError, match="Offload needs all in-edges of a rank's vertices"):
            dgcl.Offload(comm, chunks=2)

    connected(placed, strategy="tail")

    def differ(comm: dgcl.Communicator):
        with pytest.raises(
            ValueError, match=r"chunks .* same on every rank \(got 2 on rank 0 and 3 on rank 1"
        ):
            dgcl.Offload(comm, chunks=2 + comm.rank)

    connected(differ)


def test_pools_hold_the_most_rows_that_travel():
    generator = np.random.default_rng(0)
    heads = np.sort(generator.zipf(1.3, 30_000) % 9000)
    edges = np.stack([generator.integers(0, 9000, 30_000), heads])

    def run():
        comm = dgcl.build_comm_info(edges, "uniform", part=np.arange(9000) % 3)
        off = dgcl.Offload(comm, chunks=8, method="direct")
        x = torch.ones(comm.num_owned, 512, requires_grad=True)
        off.layer(torch.nn.Identity(), x, aggregate="sum", keep=False).sum().backward()
        rows, allocated = off._arrangement.device.travelling, off._transport.runtime.pool.bytes_allocated
        assert allocated == pool_bytes([[rows * 2048 + 512]])

    dgcl.launch(run, 3)
