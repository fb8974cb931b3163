"""comm.rewire: random sequences of other edges and owners are the numbers of one device; what is stale raises."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

import dgcl
import dgcl.nn
from dgcl.errors import CommError
from dgcl.ranks.context import context
from tests.dgcl.test_local_build import problem

NUM_NODES = 40


def wiring(seed: int, part: np.ndarray, num_edges: int = 160):
    """Edges of one wiring, and the dense matrix of their sums."""
    sources, heads = np.random.default_rng(seed).integers(0, NUM_NODES, (2, num_edges))
    dense = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.float64)
    one = torch.tensor(1.0, dtype=torch.float64)
    dense.index_put_((torch.from_numpy(heads), torch.from_numpy(sources)), one, accumulate=True)
    mine = part[heads] == context.require_control().rank
    return (sources[mine], heads[mine]), dense


def layer(comm, x, weight):
    """An exchange with a sum by hand, one by an aggregator, and dropout."""
    h = comm.local_graph("csr").sum(comm.expand(torch.tanh(x @ weight)))
    return dgcl.nn.dropout(comm.aggregator("mean")(h), 0.25, seed=3)


def factors_of(steps: int) -> list[torch.Tensor]:
    """What dropout multiplies the rows of all vertices with in each call, as one rank draws it."""

    def rank():
        comm = dgcl.build_comm_info(dgcl.graph.as_graph([[0], [1]], num_nodes=NUM_NODES))
        ones = torch.ones(NUM_NODES, 3, dtype=torch.float64)
        return [dgcl.nn.dropout(ones, 0.25, seed=3, comm=comm) for _ in range(steps)]

    return dgcl.launch(rank, 1)[0]


def sequence(seed: int, steps: int, factors, channel: str = "auto"):
    """A chain of wirings, all differentiated in one backward after the last: B snapshots before a backward."""
    rank, world_size = context.require_control().rank, context.require_control().world_size
    random = np.random.default_rng(seed)
    *_, part, rows = problem(seed, NUM_NODES, 1, world_size)
    edges, dense = wiring(seed, part)
    comm = dgcl.build_from_local(np.flatnonzero(part == rank), edges, "uniform", channel=channel)
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
        edges, dense = wiring(seed + 1000 + step, part)
        if random.random() < 0.5:
            part = random.integers(0, world_size, NUM_NODES)
            edges, dense = wiring(seed + 1000 + step, part)
            owned = np.random.default_rng([seed, step, rank]).permutation(np.flatnonzero(part == rank))
            moved = dgcl.fetch(comm.expand(x)[: comm.num_owned], torch.from_numpy(owned), comm)
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


@pytest.mark.parametrize("channel", ["auto", "collective"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_random_sequences_are_one_device(world_size: int, channel: str):
    dgcl.launch(sequence, world_size, world_size, 8, factors_of(8), channel)


def test_processes(rank_pool):
    rank_pool(4).run(sequence, 9, 5, factors_of(5))


def many(times: int):
    """Programs, pool and registered communicators after many rewires, each with a backward."""
    rank, world_size = context.require_control().rank, context.require_control().world_size
    part = np.arange(NUM_NODES) % world_size
    comm = dgcl.build_from_local(np.flatnonzero(part == rank), wiring(0, part)[0], "uniform")
    sizes = []
    for step in range(times):
        x = torch.ones(comm.num_owned, 2, requires_grad=True)
        comm.aggregator()(x).sum().backward()
        comm = comm.rewire(wiring(step % 7, part)[0])
        runtime = comm.transport.runtime
        sizes.append((len(runtime.programs), len(runtime.tasks), len(comm._wirings)))
    return sizes


def test_nothing_grows():
    for sizes in dgcl.launch(many, 3, 30):
        assert max(sizes[10:]) <= max(sizes[:10])
        assert sizes[-1][0] <= 4


LAYERS = {
    "by hand": lambda comm, x: comm.local_graph("csr").sum(comm.expand(x)),
    "halo rows": lambda comm, x: comm.local_graph("csr").sum(torch.cat([x, comm.expand_async(x).wait()])),
    "aggregator": lambda comm, x: comm.aggregator()(x),
    "maximum": lambda comm, x: comm.aggregator("max")(x),
}


def checkpointed(name: str) -> None:
    """A layer that is computed again after a rewire raises; so it does not on the wiring of its forward."""
    rank, world_size = context.require_control().rank, context.require_control().world_size
    part = np.arange(NUM_NODES) % world_size
    comm = dgcl.build_from_local(np.flatnonzero(part == rank), wiring(0, part)[0], "uniform")

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


def held() -> None:
    """The first communicator of many keeps no other alive but the newest, which the thread holds."""
    rank, world_size = context.require_control().rank, context.require_control().world_size
    part = np.arange(NUM_NODES) % world_size
    first = comm = dgcl.build_from_local(np.flatnonzero(part == rank), wiring(0, part)[0], "uniform")
    wirings = []
    for seed in range(4):
        comm = comm.rewire(wiring(seed, part)[0])
        wirings.append(weakref.ref(comm))
    gc.collect()
    assert [each() is None for each in wirings] == [True, True, True, False]
    assert first._newest is comm


def test_an_early_communicator_keeps_no_other_alive():
    dgcl.launch(held, 2)


def bits():
    """A rewired communicator's bits, and those of a fresh one of the same edges."""
    rank, world_size = context.require_control().rank, context.require_control().world_size
    part = np.arange(NUM_NODES) % world_size
    owned = np.flatnonzero(part == rank)
    fresh = dgcl.build_from_local(owned, wiring(5, part)[0], "uniform", method="direct")
    comm = dgcl.build_comm_info(dgcl.graph.as_graph([[0], [1]], num_nodes=NUM_NODES), "uniform", part=part)
    comm = comm.rewire(wiring(5, part)[0])
    rows = torch.randn(comm.num_owned, 5, generator=torch.Generator().manual_seed(rank))
    more = torch.randn(comm.num_local, 5, generator=torch.Generator().manual_seed(rank))
    return comm.expand(rows).equal(fresh.expand(rows)), comm.fold(more).equal(fresh.fold(more))


def test_the_bits_of_a_fresh_communicator():
    assert dgcl.launch(bits, 3) == [(True, True)] * 3


def replanned():
    """Whether a wiring for so many calls has the plan and the bits of a fresh communicator of the method expected."""
    rank = context.require_control().rank
    part = np.arange(NUM_NODES) % 8
    owned, same = np.flatnonzero(part == rank), []
    comm = dgcl.build_from_local(owned, wiring(0, part)[0], "dgx1", method="direct")
    rows = torch.randn(comm.num_owned, 5, generator=torch.Generator().manual_seed(rank))
    for calls, method in ((1, "direct"), (10**9, "auto")):
        comm = comm.rewire(wiring(5, part)[0], method="auto", calls=calls)
        fresh = dgcl.build_from_local(owned, wiring(5, part)[0], "dgx1", method=method)
        held = comm.expand(rows)
        assert comm.plan.method == fresh.plan.method
        same += [held.equal(fresh.expand(rows)), comm.fold(held).equal(fresh.fold(held))]
        fresh.close()
    return same, comm.plan.method


def test_a_wiring_is_planned_where_it_pays():
    for same, method in dgcl.launch(replanned, 8):
        assert all(same)
        assert method != "direct"


def refused(case: str) -> list[str]:
    """Messages of one case; the ranks go on together afterwards."""
    rank = context.require_control().rank
    part = np.arange(NUM_NODES) % 2
    edges = wiring(1, part)[0]
    owned = np.flatnonzero(part == rank)
    if case == "strategy":
        graph = dgcl.graph.as_graph(
            np.random.default_rng(0).integers(0, NUM_NODES, (2, 100)), num_nodes=NUM_NODES
        )
        comm = dgcl.build_comm_info(graph, "uniform", part=part, edges="tail")
    else:
        comm = dgcl.build_from_local(owned, edges, "uniform")
    aggregator, x, said = comm.aggregator(), torch.ones(comm.num_owned, 2), []
    calls = {
        "strategy": [lambda: comm.rewire(edges)],
        "head-of-another": [lambda: comm.rewire(([0], [1 - rank]))],
        "owners-on-one-rank": [lambda: comm.rewire(edges, owned_ids=owned if rank else None)],
        "fewer-vertices": [lambda: comm.rewire(([], []), owned_ids=[rank])],
        "windows": [lambda: comm.rewire(edges).aggregator(windows=2)],
        "method": [lambda: comm.rewire(edges, method="metis")],
        "calls": [lambda: comm.rewire(edges, method="auto", calls=1 + rank)],
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
    after = dgcl.current_communicator() if case == "windows" else after
    after.aggregator()(x)
    return said


REFUSALS = {
    "strategy": "edges='tail'",
    "head-of-another": "heads of rank . must be vertices that it owns",
    "owners-on-one-rank": "owned_ids must be given on every rank or on none",
    "fewer-vertices": "owned_ids must be the 40 vertices of before",
    "windows": "windows go with a graph that stays",
    "method": "method must be one of",
    "calls": "calls be the same: of .*auto, calls=1.*auto, calls=2",
    "stale": "this communicator was rewired",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str):
    assert all(dgcl.launch(refused, 2, case))


def alone() -> str:
    """Rank 1 rewires, and rank 0 makes a call of rows."""
    rank = context.require_control().rank
    part = np.arange(NUM_NODES) % 2
    comm = dgcl.build_from_local(np.flatnonzero(part == rank), wiring(1, part)[0], "uniform")
    with pytest.raises(CommError) as error:
        comm.rewire(wiring(2, part)[0]) if rank else comm.expand(torch.ones(comm.num_owned, 2))
    return f"{type(error.value).__name__}: {error.value}"


def test_some_ranks_alone():
    said = dgcl.launch(alone, 2)
    assert any(text.startswith("DisagreementError") and "rewire" in text for text in said), said
