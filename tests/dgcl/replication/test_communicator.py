"""What a program sees of replicas: rows, collections, statistics, sums; and that nothing crosses machines."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import dgcl
import dgcl.nn
from dgcl.graph import as_graph
from dgcl.prepare.part_files import load_share, save_parts
from dgcl.prepare.shares import prepare_inputs
from dgcl.replication.strategy import Replicas
from tests.dgcl.replication.machines import LAYOUTS, machines

NUM_NODES = 40
EDGES = np.random.default_rng(2).integers(0, NUM_NODES, (2, 110))
MACHINE = LAYOUTS["three-unequal"]


def on_ranks(
    function: Callable[[dgcl.Communicator], Any], network: float = 0.001, **options: Any
) -> list[Any]:
    """``function(comm)`` on every rank of three unequal machines, for two layers."""

    def run() -> Any:
        graph = as_graph(EDGES, num_nodes=NUM_NODES)
        given: dict[str, Any] = {
            "strategy": "replicas:2",
            "timeout": 60.0,
            **options,
        }
        comm = dgcl.build_comm_info(graph, machines(MACHINE, network), **given)
        try:
            return function(comm)
        finally:
            comm.close()

    return dgcl.launch(run, len(MACHINE))


def rows(*trailing: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(NUM_NODES, *trailing, dtype=torch.float64, generator=generator)


def test_every_vertex_is_a_core_row_once_and_comes_back():
    def run(comm: dgcl.Communicator) -> list[int]:
        mine = dgcl.dispatch_features(rows(3))
        assert torch.equal(mine, rows(3)[comm.owned_ids])
        assert comm.num_core == comm.local.num_core <= comm.num_owned == len(mine)
        spoilt = mine.clone()
        spoilt[comm.num_core :] = torch.nan  # replicas do not count
        assert torch.equal(dgcl.collect(spoilt, None), rows(3))
        everything = dgcl.dispatch_features(rows(3), halo=True)
        assert torch.equal(everything, rows(3)[torch.cat([comm.owned_ids, comm.halo_ids])])
        return comm.owned_ids[: comm.num_core].tolist()

    assert sorted(vertex for mine in on_ranks(run) for vertex in mine) == list(range(NUM_NODES))


def test_no_byte_goes_to_another_machine():
    def run(comm: dgcl.Communicator) -> int:
        comm.fold(comm.expand(dgcl.dispatch_features(rows(4))))
        here = torch.tensor(MACHINE) == MACHINE[comm.rank]
        for sent in comm.bytes_sent.values():
            assert sent[~here].sum() == 0
        return int(sum(sent.sum() for sent in comm.bytes_sent.values()))

    assert sum(on_ranks(run)) > 0


def test_describe_says_what_does_not_travel_and_why():
    texts = on_ranks(lambda comm: comm.describe())
    for rank, text in enumerate(texts):
        assert "replicated across machines, for 2 exchange(s): no row travels between machines" in text
        assert re.search(r"keeps \d+ rows of its own and \d+ replicas", text)
        assert "replicas of 2 hops make" in text
        for peer, machine in enumerate(MACHINE):
            line = next((line for line in text.splitlines() if f"rank {peer}: " in line), "")
            away = "nothing travels: it is on another machine; sends 0 rows, receives 0"
            assert (away in line) == (machine != MACHINE[rank])


def test_memory_that_is_not_there_is_an_error_on_every_rank():
    def run():
        with pytest.raises(MemoryError, match="do not fit"):
            dgcl.build_comm_info(as_graph(EDGES), machines(MACHINE), strategy=dgcl.Replicas(2, 1000))

    dgcl.launch(run, len(MACHINE))


LOSSES: dict[str, tuple[Callable[..., Any], bool]] = {
    "cross_entropy": (F.cross_entropy, True),
    "bce": (F.binary_cross_entropy_with_logits, False),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_count_each_vertex_once(name: str, masked: bool):
    theirs, classes = LOSSES[name]
    ours = dgcl.nn.loss(theirs)
    labels = torch.arange(NUM_NODES) % 3 if classes else rows(3).sigmoid().flip(0)
    mask = torch.arange(NUM_NODES) % 4 != 1 if masked else torch.ones(NUM_NODES, dtype=torch.bool)
    outputs = rows(3).requires_grad_()
    expected = theirs(outputs[mask], labels[mask])
    expected.backward()

    def run(comm: dgcl.Communicator):
        mine = dgcl.dispatch_features(rows(3)).requires_grad_()
        given = (mine, dgcl.dispatch_features(labels), dgcl.dispatch_features(mask) if masked else None)
        loss = ours(*given)
        loss.backward()
        torch.testing.assert_close(loss.detach(), expected.detach())
        torch.testing.assert_close(dgcl.collect(mine.grad, None), outputs.grad)
        assert not mine.grad[comm.num_core :].any()
        core = [None if some is None else some[: comm.num_core] for some in given]
        assert ours(*core) == loss  # core rows alone may be given, too
        with pytest.raises(ValueError, match="outputs must hold"):
            ours(*(None if some is None else torch.cat([some, some[:1]]) for some in given))

    on_ranks(run)


def test_weights_of_elements_stay_with_their_rows():
    labels, weight = rows(3).sigmoid().flip(0), rows(3).abs()
    expected = F.binary_cross_entropy_with_logits(rows(3), labels, weight)

    def run(comm: dgcl.Communicator):
        mine = (dgcl.dispatch_features(each) for each in (rows(3), labels))
        loss = dgcl.nn.loss(F.binary_cross_entropy_with_logits)(*mine, weight=dgcl.dispatch_features(weight))
        torch.testing.assert_close(loss, expected)
        by_column = dgcl.nn.loss(F.binary_cross_entropy_with_logits)(
            *(dgcl.dispatch_features(each) for each in (rows(3), labels)), weight=weight[0]
        )
        torch.testing.assert_close(by_column, F.binary_cross_entropy_with_logits(rows(3), labels, weight[0]))

    on_ranks(run)


def test_accuracy_counts_each_vertex_once():
    labels = torch.arange(NUM_NODES) % 3
    expected = (rows(3).argmax(1) == labels).double().mean()
    for found in on_ranks(
        lambda comm: dgcl.nn.accuracy(dgcl.dispatch_features(rows(3)), dgcl.dispatch_features(labels))
    ):
        assert found == expected


def test_batch_normalisation_has_the_statistics_of_the_vertices():
    whole = torch.nn.BatchNorm1d(3, dtype=torch.float64)
    x = rows(3).requires_grad_()
    out = whole(x)
    (out * rows(3).cos()).sum().backward()

    def run(comm: dgcl.Communicator):
        norm = dgcl.nn.BatchNorm(3, dtype=torch.float64)
        mine = dgcl.dispatch_features(rows(3)).requires_grad_()
        found = norm(mine)
        torch.testing.assert_close(found, out.detach()[comm.owned_ids])  # of replicas, too
        torch.testing.assert_close(norm.running_var, whole.running_var)
        own = slice(comm.num_core)
        (found[own] * dgcl.dispatch_features(rows(3).cos())[own]).sum().backward()
        torch.testing.assert_close(dgcl.collect(mine.grad, None), x.grad)

    on_ranks(run)


def test_copies_drop_the_same_elements():
    def run(comm: dgcl.Communicator) -> dict[int, list[float]]:
        dropped = dgcl.nn.dropout(dgcl.dispatch_features(torch.ones(NUM_NODES, 8)), 0.5)
        return dict(zip(comm.owned_ids.tolist(), dropped.tolist(), strict=True))

    found = on_ranks(run)
    seen: dict[int, list[float]] = {}
    for of_rank in found:
        for vertex, kept in of_rank.items():
            assert seen.setdefault(vertex, kept) == kept
    assert sum(map(len, found)) > NUM_NODES  # there are copies


def test_sums_over_copies():
    def run(comm: dgcl.Communicator):
        mine = dgcl.dispatch_features(rows(2)) * (comm.rank + 1)
        factor = torch.zeros(NUM_NODES, dtype=torch.float64)
        for rank, ids in enumerate(comm.control.exchange(comm.owned_ids)):
            factor[ids] += rank + 1
        expected = (rows(2) * factor[:, None])[comm.owned_ids]
        torch.testing.assert_close(dgcl.nn.sum_copies(mine), expected)
        with pytest.raises(ValueError, match="rows must hold"):
            dgcl.nn.sum_copies(mine[1:])

    on_ranks(run)


def test_parts_prepared_offline_keep_their_replicas(tmp_path):
    topology = machines(MACHINE)
    inputs = prepare_inputs(EDGES, len(MACHINE), topology, strategy=Replicas(2))
    save_parts(tmp_path, inputs)
    for rank, mine in enumerate(inputs):
        loaded, _ = load_share(tmp_path, rank, len(MACHINE))
        assert loaded.local.num_replicas == mine.num_replicas
        assert loaded.choice == mine.choice
        assert loaded.plan.meta["replication"] == mine.exchanges[0].plan.meta["replication"]
