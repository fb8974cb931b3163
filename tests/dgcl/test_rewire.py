"""comm.rewire: random sequences of other edges and owners are the numbers of one device; what is stale raises."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

import dgcl
import dgcl.nn
from dgcl.errors import CommError
from dgcl.prepare import local_edges
from dgcl.ranks.context import context
from tests.dgcl.support_local_build import problem

NUM_NODES = 40


def wiring(seed: int, part: np.ndarray, num_edges: int = 160):
    """Edges of one wiring, and the dense matrix of their sums."""
    sources, heads = np.random.default_rng(seed).integers(0, NUM_NODES, (2, num_edges))
    dense = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.float64)
    np.add.at(dense.numpy(), (heads, sources), 1)
    mine = part[heads] == context.require_control().rank
    return (sources[mine], heads[mine]), dense


def built(seed: int, topology: str = "uniform", **kinds: str):
    """A communicator of one wiring, and the owners, who have vertices in turn."""
    control = context.require_control()
    part = np.arange(NUM_NODES) % control.world_size
    owned = np.flatnonzero(part == control.rank)
    return dgcl.build_from_local(owned, wiring(seed, part)[0], topology, **kinds), part


def layer(comm, x, weight):
    """An exchange with a sum by hand, where a rank has all edges, one by an aggregator, and dropout."""
    h = torch.tanh(x @ weight)
    h = comm.local_graph("csr").sum(comm.expand(h)) if comm.edges == "head" else comm.aggregator()(h)
    return dgcl.nn.dropout(comm.aggregator("mean")(h), 0.25, seed=3)


def factors_of(steps: int) -> list[torch.Tensor]:
    """What dropout multiplies the rows of all vertices with in each call, as one rank draws it."""

    def rank():
        comm = dgcl.build_comm_info(dgcl.graph.as_graph([[0], [1]], num_nodes=NUM_NODES))
        ones = torch.ones(NUM_NODES, 3, dtype=torch.float64)
        return [dgcl.nn.dropout(ones, 0.25, seed=3, comm=comm) for _ in range(steps)]

    return dgcl.launch(rank, 1)[0]


def sequence(seed: int, steps: int, factors, channel: str, strategy: str):
    """A chain of wirings, all differentiated in one backward after the last: B snapshots before a backward."""
    rank, world_size = context.require_control().rank, context.require_control().world_size
    random = np.random.default_rng(seed)
    *_, part, rows = problem(seed, NUM_NODES, 1, world_size)
    edges, dense = wiring(seed, part)
    owned, kinds = np.flatnonzero(part == rank), {"channel": channel, "strategy": strategy}
    comm = dgcl.build_from_local(owned, edges, "uniform", **kinds)
    weight = torch.eye(3, dtype=torch.float64).requires_grad_()
    whole_weight = torch.eye(3, dtype=torch.float64).requires_grad_()
    x_all = torch.from_numpy(rows)
    loss = whole_loss = 0.0
    for step in range(steps):
        x = x_all[comm.owned_ids]
        out = layer(comm, x, weight)
        expected = dense @ torch.tanh(x_all @ whole_weight)
        expected = (dense @ expected) / dense.sum(1, keepdim=True).clamp(min=1) * factors[step]
        torch.testing.assert_close(out, expected[comm.owned_ids], rtol=1e-10, atol=1e-10)
        loss, whole_loss = loss + out.pow(2).sum(), whole_loss + expected.pow(2).sum()
        if moves := random.random() < 0.5:
            part = random.integers(0, world_size, NUM_NODES)
        edges, dense = wiring(seed + 1000 + step, part)
        if moves:
            owned = np.random.default_rng([seed, step, rank]).permutation(np.flatnonzero(part == rank))
            moved = dgcl.fetch(x, torch.from_numpy(owned), comm)
            comm = comm.rewire(edges, owned_ids=owned, method=random.choice(["direct", "auto"]))
            assert moved.equal(x_all[owned])
        else:
            comm = comm.rewire(edges)
        assert dgcl.current_communicator() is comm
    loss.backward()
    whole_loss.backward()
    total = comm.all_reduce_sum(weight.grad)
    torch.testing.assert_close(total, whole_weight.grad, rtol=1e-10, atol=1e-10)
    return len(comm.transport.runtime.programs) if channel == "auto" else 0


STRATEGIES = pytest.mark.parametrize("strategy", ["halo", "tail", "cover"])


@pytest.mark.sample(3)
@STRATEGIES
@pytest.mark.parametrize("channel", ["auto", "collective"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_random_sequences_are_one_device(world_size: int, channel: str, strategy: str):
    dgcl.launch(sequence, world_size, world_size, 8, factors_of(8), channel, strategy)


@STRATEGIES
def test_processes(rank_pool, strategy: str):
    rank_pool(4).run(sequence, 9, 5, factors_of(5), "auto", strategy)


def many(times: int, strategy: str):
    """Programs, tasks and wirings after many rewires, each with a backward; the first keeps but the newest alive."""
    comm, part = built(0, strategy=strategy)
    sizes, wirings, first = [], [], comm
    for step in range(times):
        x = torch.ones(comm.num_owned, 2, requires_grad=True)
        comm.aggregator()(x).sum().backward()
        comm = comm.rewire(wiring(step % 7, part)[0])
        wirings.append(weakref.ref(comm))
        runtime = comm.transport.runtime
        sizes.append((len(runtime.programs), len(runtime.tasks), len(comm._wirings)))
    gc.collect()
    assert [each() for each in wirings] == [None] * (times - 1) + [comm]
    assert first._newest is comm
    return sizes


@STRATEGIES
def test_nothing_grows(strategy: str, monkeypatch):
    """Memory goes back to the system when ranks build, and not in each rewire."""
    trims = []
    monkeypatch.setattr(local_edges, "ctypes", SimpleNamespace(CDLL=trims.append))
    for sizes in dgcl.launch(many, 3, 20, strategy):
        assert max(sizes[10:]) <= max(sizes[:10])
        assert sizes[-1][0] <= (4 if strategy == "halo" else 8)
    assert len(trims) == 3


LAYERS = {
    "by hand": lambda comm, x: comm.local_graph("csr").sum(comm.expand(x)),
    "halo rows": lambda comm, x: comm.local_graph("csr").sum(torch.cat([x, comm.expand_async(x).wait()])),
    "aggregator": lambda comm, x: comm.aggregator()(x),
    "maximum": lambda comm, x: comm.aggregator("max")(x),
}


def checkpointed(name: str):
    """A layer that is computed again after a rewire raises; so it does not on the wiring of its forward."""
    comm, part = built(0)

    def loss() -> torch.Tensor:
        x = torch.ones(comm.num_owned, 2, requires_grad=True)
        layer = checkpoint(
            lambda x: LAYERS[name](dgcl.current_communicator(), x).square(), x, use_reentrant=False
        )
        return layer.sum()

    before = loss()
    comm = comm.rewire(wiring(0, part)[0])  # nothing but the communicator differs
    with pytest.raises(CheckpointError, match="different metadata"):
        before.backward()
    loss().backward()


@pytest.mark.parametrize("name", LAYERS)
def test_a_checkpointed_layer_of_another_wiring_is_refused(name: str):
    dgcl.launch(checkpointed, 2, name)


def bits(strategy: str):
    """Whether a rewired communicator has the bits of a fresh one of the same edges."""
    fresh, part = built(5, method="direct", strategy=strategy)
    comm = dgcl.build_comm_info(
        dgcl.graph.as_graph([[0], [1]], num_nodes=NUM_NODES), "uniform", part=part, strategy=strategy
    )
    comm = comm.rewire(wiring(5, part)[0])
    rows = torch.randn(comm.num_owned, 5, generator=torch.Generator().manual_seed(comm.rank))
    assert comm.aggregator("mean")(rows).equal(fresh.aggregator("mean")(rows))
    for name in fresh.exchanges:
        held = comm.expand(rows, name)
        assert held.equal(fresh.expand(rows, name))
        assert comm.fold(held.sin(), name).equal(fresh.fold(held.sin(), name))
        assert comm.bytes_sent_by(name)["fold"].equal(fresh.bytes_sent_by(name)["fold"])


@STRATEGIES
def test_the_bits_of_a_fresh_communicator(strategy: str):
    dgcl.launch(bits, 3, strategy)


def replanned():
    """Whether a wiring has the plan and the bits of a fresh communicator of its method."""
    comm, part = built(0, "dgx1", method="direct")
    rows = torch.randn(comm.num_owned, 5, generator=torch.Generator().manual_seed(comm.rank))
    comm = comm.rewire(wiring(5, part)[0], method="auto")
    fresh, _ = built(5, "dgx1", method="auto")
    assert comm.plan.method == fresh.plan.method
    assert comm.fold(comm.expand(rows)).equal(fresh.fold(fresh.expand(rows)))
    fresh.close()
    return comm.plan.method


def test_a_wiring_is_planned_by_its_method():
    assert "direct" not in dgcl.launch(replanned, 8)


def refused(case: str) -> list[str]:
    """Messages of one case; the ranks go on together afterwards."""
    rank, strategy = (
        context.require_control().rank,
        "cover" if case in ("maximum", "rows of edges") else "halo",
    )
    comm, part = built(1, strategy=strategy)
    edges, owned = wiring(1, part)[0], np.flatnonzero(part == rank)
    if kind := {"strategy": "cover:machine", "windowed": "windows:2"}.get(case):
        comm = dgcl.build_comm_info(
            dgcl.graph.as_graph([[0], [1]], num_nodes=NUM_NODES), "uniform", part=part, strategy=kind
        )
    aggregator, x, said = comm.aggregator(), torch.ones(comm.num_owned, 2), []
    calls = {
        "strategy": [lambda: comm.rewire(edges)],
        "windowed": [lambda: comm.rewire(edges)],
        "pairs": [lambda: comm.rewire(np.stack(edges, 1))],
        "head-of-another": [lambda: comm.rewire(([0], [1 - rank]))],
        "owners-on-one-rank": [lambda: comm.rewire(edges, owned_ids=owned if rank else None)],
        "fewer-vertices": [lambda: comm.rewire(([], []), owned_ids=[rank])],
        "windows": [lambda: comm.rewire(edges).aggregator(windows=2)],
        "maximum": [lambda: comm.rewire(edges).aggregator("max")],
        "rows of edges": [lambda: comm.dispatch_edges(torch.ones(len(edges[0]) - rank))],
        "methods": [lambda: comm.rewire(edges, method="auto" if rank else "direct")],
        "stale": [
            lambda: comm.expand(x),
            lambda: comm.fold(x),
            lambda: aggregator(x),
            lambda: comm.aggregator(),
            lambda: comm.local_graph("csr"),
            lambda: comm.dispatch_features(torch.ones(NUM_NODES, 1), halo=True),
            lambda: comm.rewire(edges),
            lambda: dgcl.collect(x, comm=comm),
            lambda: dgcl.fetch(x, torch.tensor([0]), comm),
            lambda: comm.dispatch_edges(torch.ones(len(edges[0]))),
        ],
    }[case]
    after = comm.rewire(edges) if case == "stale" else comm
    for call in calls:
        with pytest.raises(ValueError, match=REFUSALS[case]) as error:
            call()
        said.append(str(error.value))
    after = dgcl.current_communicator() if case in ("windows", "maximum") else after
    after.aggregator()(x)
    return said


REFUSALS = {
    "windowed": "windows, and .* are those of the old edges",
    "pairs": "edges must be .sources, heads., two rows",
    "strategy": "strategy='cover:machine' is decided by the whole graph",
    "head-of-another": "heads of rank . must be vertices that it owns",
    "owners-on-one-rank": "owned_ids must be given on every rank or on none",
    "fewer-vertices": "owned_ids must be the 40 vertices of before",
    "windows": "windows go with a graph that stays",
    "maximum": "reduce='max' with strategy='cover' goes with a graph that stays",
    "rows of edges": "values must have one row for each of the .* edges of rank 1",
    "methods": "method and strategy be the same: of .*direct.*auto",
    "stale": "this communicator was rewired",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str):
    assert all(dgcl.launch(refused, 2, case))


def alone() -> str:
    """Rank 1 rewires, and rank 0 makes a call of rows."""
    comm, part = built(1)
    with pytest.raises(CommError) as error:
        comm.rewire(wiring(2, part)[0]) if comm.rank else comm.expand(torch.ones(comm.num_owned, 2))
    return f"{type(error.value).__name__}: {error.value}"


def test_some_ranks_alone():
    said = dgcl.launch(alone, 2)
    assert any(text.startswith("DisagreementError") and "rewire" in text for text in said), said


def test_the_sums_of_an_offload_are_of_the_new_edges():
    def rank():
        comm, part = built(1)
        edges, dense = wiring(2, part)
        comm = comm.rewire(edges)
        x = torch.arange(2.0 * NUM_NODES, dtype=torch.float64).view(-1, 2)
        y = dgcl.Offload(comm, chunks=3).layer(torch.nn.Identity(), x[comm.owned_ids], aggregate="sum")
        torch.testing.assert_close(y, (dense @ x)[comm.owned_ids])

    dgcl.launch(rank, 3)
