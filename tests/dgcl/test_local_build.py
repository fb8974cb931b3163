"""dgcl.build_from_local: the numbers of one device, the programs of build_comm_info, and what is refused."""

import re
from dataclasses import fields

import numpy as np
import pytest
import torch

import dgcl
from dgcl.graph import as_graph
from dgcl.prepare import local_edges
from dgcl.ranks.context import context
from dgcl.relation import halo_demand
from tests.dgcl.support_local_build import problem
from tests.support.proof import prove
from tests.support.samples import named


def own_part(seed: int, sources, heads, part, shuffled: bool):
    """This rank's vertices and edges, in an order of its own where they are shuffled."""
    rank = context.require_control().rank
    owned, edges = np.flatnonzero(part == rank), np.flatnonzero(part[heads] == rank)
    if shuffled:
        random = np.random.default_rng([seed, rank])
        random.shuffle(owned)
        random.shuffle(edges)
    return owned, edges


def train(seed: int, size: tuple[int, int], topology: str, shuffled: bool, strategy: str):
    """Compare with one device, and with build_comm_info where rows are in its order; the program and the plan."""
    world_size = context.require_control().world_size
    sources, heads, part, rows = problem(seed, *size, world_size)
    owned, edges = own_part(seed, sources, heads, part, shuffled)
    mine = torch.from_numpy(owned), (sources[edges], heads[edges])
    comm = dgcl.build_from_local(*mine, topology, strategy=strategy)
    graph = as_graph(np.stack([sources, heads]), num_nodes=size[0])
    assert comm.owned_ids.tolist() == owned.tolist()
    assert np.array_equal(comm.local.in_degrees, graph.in_degrees()[comm.local.local_ids])
    assert np.array_equal(comm.local.out_degrees, graph.out_degrees()[comm.local.local_ids])

    weights = torch.from_numpy(np.random.default_rng(seed).standard_normal(size[1]))
    x_all = torch.from_numpy(rows).requires_grad_()
    dense = torch.zeros(size[0], size[0], dtype=torch.float64)
    np.add.at(dense.numpy(), (heads, sources), weights)
    (dense @ x_all).pow(2).sum().backward()
    x = comm.dispatch_features(rows).requires_grad_()
    weight = comm.dispatch_edges(weights[edges])
    out = comm.aggregator(edge_weight=weight)(x)
    out.pow(2).sum().backward()
    torch.testing.assert_close(out, (dense @ x_all.detach())[owned], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(x.grad, x_all.grad[owned], rtol=1e-10, atol=1e-10)
    if strategy == "halo":
        by_hand = comm.local_graph("csr").sum(comm.expand(x), weight)
        torch.testing.assert_close(by_hand, out, rtol=1e-10, atol=1e-10)
    windowed = comm.aggregator(edge_weight=weight, windows=min(2, size[0]))(x)
    torch.testing.assert_close(windowed, out, rtol=1e-10, atol=1e-10)
    assert comm.collect(x.detach(), None).equal(x_all.detach())
    program = comm.exchanges["halo"].program
    if not shuffled:
        whole = dgcl.build_comm_info(graph, topology, part=part, strategy=strategy)
        assert whole.aggregator(edge_weight=weight)(x).equal(out)
        assert whole.dispatch_edges(weights).equal(weight)
        assert comm.exchanges.keys() == whole.exchanges.keys()
        for ours, theirs in (
            (getattr(one.program, verb, one.program), getattr(other.program, verb, other.program))
            for one, other in zip(comm.exchanges.values(), whole.exchanges.values(), strict=True)
            for verb in ("", "expand", "fold")
        ):
            for field in fields(ours):
                value = getattr(ours, field.name)
                if isinstance(value, np.ndarray):
                    assert value.dtype == getattr(theirs, field.name).dtype
                    assert np.array_equal(value, getattr(theirs, field.name)), field.name
    return program, comm.plan, halo_demand(graph, part, world_size)


SIZES = {"few": (5, 3), "some": (40, 200), "many": (300, 3000)}


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", ["halo", "tail", "cover"])
@named("shuffled", {"ascending": False, "shuffled": True})
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("world_size, topology", [(1, "auto"), (3, "auto"), (8, "dgx1")])
def test_the_numbers_of_one_device(world_size: int, topology: str, size: str, shuffled: bool, strategy: str):
    results = dgcl.launch(train, world_size, world_size, SIZES[size], topology, shuffled, strategy)
    if not shuffled and strategy == "halo":
        prove([program for program, *_ in results], results[0][2])
    if (world_size, size, strategy) == (8, "many", "halo"):
        assert any(program.num_relay for program, *_ in results), "some rows are passed on"


@pytest.mark.parametrize("strategy", ["halo", "cover"])
def test_processes(rank_pool, strategy: str):
    assert len(rank_pool(4).run(train, 7, SIZES["some"], "auto", True, strategy)) == 4


def refused(owned, sources, heads, keywords):
    """The text of the error."""
    rank = context.require_control().rank
    with pytest.raises((TypeError, ValueError)) as error:
        dgcl.build_from_local(owned[rank], (sources[rank], heads[rank]), "uniform", **keywords)
    dgcl.build_from_local([rank], ([], []), "uniform").close()  # the ranks are together still
    return str(error.value)


HALVES, NOTHING = [[0, 1], [2, 3]], [[], []]
REFUSALS = {
    "two-owners": ([[0, 1], [1, 3]], NOTHING, NOTHING, r"vertex 1 from ranks \[0, 1\]"),
    "no-owner": ([[0, 1], [2, 4]], NOTHING, NOTHING, r"owned_ids of rank 1 must lie in \[0, 4\)"),
    "twice-on-a-rank": (
        [[0, 1], [2, 2]],
        NOTHING,
        NOTHING,
        r"each vertex once \(got vertex 2 from ranks \[1, 1\]",
    ),
    "source-of-nobody": (
        HALVES,
        [[], [9]],
        [[], [2]],
        r"sources of rank 1 must lie in \[0, 4\), as all ranks own 4",
    ),
    "head-of-another": (
        HALVES,
        [[2], []],
        [[3], []],
        "heads of rank 0 must be vertices that it owns.*vertex 3",
    ),
    "head-of-another-in-no-order": ([[1, 0], [2, 3]], [[2], []], [[3], []], "heads of rank 0.*vertex 3"),
    "lengths": (HALVES, [[2, 3], []], [[1], []], r"sources and heads must be as many \(got 2 and 1\)"),
    "no-integers": (HALVES, [[0.5], []], [[1], []], "sources must hold integers"),
    "method": (HALVES, NOTHING, NOTHING, "method must be one of auto"),
    "strategy": (HALVES, NOTHING, NOTHING, "strategy must be one of halo, tail, cover .got 'cover:machine'"),
    "nothing-at-all": (NOTHING, NOTHING, NOTHING, "owned_ids: all ranks together must own a vertex"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_raised_on_every_rank(name: str):
    *arguments, text = REFUSALS[name]
    keywords = {"method": {"method": "fastest"}, "strategy": {"strategy": "cover:machine"}}.get(name, {})
    for said in dgcl.launch(refused, 2, *arguments, keywords):
        assert re.search(text, said), said


def spoiled(function, expected):
    """The text of an error that this rank meets, or meets alone."""
    with pytest.raises(expected) as error:
        function()
    return str(error.value)


def test_a_timeout_on_one_rank_alone_is_refused_on_each(tmp_path):
    def run():
        rank = context.require_control().rank
        timeout = -1.0 if rank else 60.0
        calls = (
            lambda: dgcl.build_from_local([rank], ([], []), "uniform", timeout=timeout),
            lambda: dgcl.build_comm_info(([0], [1]), "uniform", timeout=timeout),
            lambda: dgcl.load_comm_info(tmp_path, timeout=timeout),
        )
        return [spoiled(call, ValueError) for call in calls]

    said = dgcl.launch(run, 2)
    assert all("timeout must be a positive number of seconds" in text for text in (*said[1], *said[0][:2])), (
        said
    )


def test_a_rank_that_fails_alone_is_named_on_every_other(monkeypatch):
    def share_of(inputs, items):
        if inputs.rank == 1:
            raise MemoryError("no room for tables")
        return whole(inputs, items)

    whole = local_edges.share_of
    monkeypatch.setattr(local_edges, "share_of", share_of)

    def run():
        rank = context.require_control().rank
        expected = MemoryError if rank == 1 else dgcl.CommError
        return spoiled(lambda: dgcl.build_from_local([rank], ([], []), "uniform"), expected)

    for rank, said in enumerate(dgcl.launch(run, 3)):
        assert "no room for tables" in said
        assert rank == 1 or "rank 1 was stopped by MemoryError" in said
