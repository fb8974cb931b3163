"""Aggregations, whole and in windows, give those of a dense matrix, and move and hold what they are meant to.

==========================  ===================================================================================
what                        judged by
==========================  ===================================================================================
sums, gradients             ``A @ x`` in float64, autograd through it; the toy graph's published numbers
rows moved                  those of the whole halo, counted by the runtime
memory                      rows of the two largest windows, as the pool rounds them
the same bits               a second run, and a third call
a rank that leaves          every other rank names it, wherever in the windows it was
==========================  ===================================================================================
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.aggregation import connect_aggregators as connecting
from dgcl.errors import CommError
from dgcl.program.exchange import HALO, PARTIAL
from tests.dgcl.aggregation.support_windows import WAYS, most_windows
from tests.support.aggregator import (
    CASE_BY_NAME,
    EXACT,
    PLACEMENTS,
    SUMS,
    TOY,
    Results,
    aggregated,
    assert_close,
    connect,
    dense,
    expected,
    features,
    train_the_toy,
)
from tests.support.awkward import CASES
from tests.support.plans import random_world
from tests.support.ranks import join, said


def on_rank(
    name: str, world_size: int, edges: str, options: dict[str, Any], channel: str = "auto"
) -> list[Results]:
    """Of all kinds of sums, one after the other on one communicator."""
    case = CASE_BY_NAME[name]
    comm = connect(case, world_size, edges, channel=channel)
    return [aggregated(comm, case, *each, **most_windows(name, options)) for each in SUMS]


def assert_dense(ranks: list[list[Results]], name: str):
    for found in ranks:
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            assert_close(each, expected(name, reduce, weighted))


@pytest.mark.sample(24)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASE_BY_NAME)
def test_equals_the_dense_product(name, way, edges, world_size):
    assert_dense(dgcl.launch(on_rank, world_size, name, world_size, edges, WAYS[way]), name)


@pytest.mark.parametrize("way", ["2", "owner"])
@pytest.mark.parametrize("grid", ["2,1,2", "1,2,2", "2,2,1", "1,1,4"])
def test_slices_of_rows(grid, way):
    assert_dense(dgcl.launch(on_rank, 4, "multi-edges", 4, f"grid:{grid}", WAYS[way]), "multi-edges")


@pytest.mark.sample(6)
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("channel", ["auto", "memory", "collective"])
@pytest.mark.parametrize("way", ["whole", "2", "5", "owner"])
def test_between_processes(way, channel, edges, rank_pool):
    assert_dense(rank_pool(3).run(on_rank, "multi-edges", 3, edges, WAYS[way], channel), "multi-edges")


@pytest.mark.sample(6)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("way", WAYS)
def test_the_toy_graph(way, edges, world_size):
    def train() -> dict[str, float]:
        return train_the_toy(edges, world_size, **WAYS[way])

    for found in dgcl.launch(train, world_size):
        assert found == pytest.approx(TOY, rel=1e-12)


def second_derivative(aggregate: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    y = aggregate(x.requires_grad_())
    (gradient,) = torch.autograd.grad((y.real**3 + y.imag**2).sum(), x, create_graph=True)
    return torch.autograd.grad((gradient.abs() ** 2).sum(), x)[0]


@pytest.mark.parametrize("edges", PLACEMENTS)
def test_second_derivatives_and_complex_rows(edges):
    case = CASE_BY_NAME["self-loops"]
    x = torch.complex(features(26, 2), features(26, 2, seed=1))

    def on_ranks() -> list[Tensor]:
        comm = connect(case, 3, edges)
        return [
            comm.collect(second_derivative(comm.aggregator(**WAYS[way]), comm.dispatch_features(x)), None)
            for way in ("whole", "5", "owner")
        ]

    matrix = dense(case, "sum", None).to(x.dtype)
    wanted = second_derivative(lambda x: matrix @ x, x.clone())
    for rank in dgcl.launch(on_ranks, 3):
        for found in rank:
            torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)


def relayed(trees: str) -> list[Results]:
    """Rows that travel over ranks that do not read them, along plans that no planner made."""
    world = random_world(3, 4, trees)
    comm = join(world.shares())
    found = []
    for options in WAYS.values():
        x = comm.dispatch_features(features(world.graph.num_nodes, 3)).requires_grad_()
        y = comm.aggregator(**options)(x)
        (y * comm.dispatch_features(features(world.graph.num_nodes, 3, seed=5))).sum().backward()
        found.append({"y": comm.collect(y.detach(), None), "x": comm.collect(x.grad, None)})
    return found


@pytest.mark.parametrize("trees", ["line", "hub", "chain", "random-1"])
def test_rows_that_are_relayed(trees):
    for whole, *others in dgcl.launch(relayed, 4, trees):
        for found in others:
            assert_close(found, whole)


def repeated(edges: str, reduce: str, options: dict[str, Any]) -> list[bytes]:
    comm = connect(CASE_BY_NAME["hub"], 4, edges)
    x = comm.dispatch_features(features(26, 33, dtype=torch.float32)).requires_grad_()
    found = []
    for _ in range(3):
        y = comm.aggregator(reduce, **options)(x)
        (gradient,) = torch.autograd.grad((y**2).sum(), x)
        found.append(y.detach().numpy().tobytes() + gradient.numpy().tobytes())
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "reduce, options",
    [("mean", {}), ("mean", {"windows": 3}), ("mean", {"by": "owner"}), ("max", {})],
    ids=str,
)
@pytest.mark.parametrize("edges", PLACEMENTS)
def test_the_same_input_gives_the_same_bits(edges, reduce, options):
    first_run, second_run = (dgcl.launch(repeated, 4, edges, reduce, options) for _ in range(2))
    assert first_run == second_run
    for first, *others in first_run:
        assert all(other == first for other in others)


def count_rows(edges: str, options: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Rows sent to each peer, of each exchange, in both verbs; and those that the relations want in all."""
    comm = connect(CASE_BY_NAME["multi-edges"], 4, edges, method="direct")
    x = comm.dispatch_features(features(26, 3)).requires_grad_()
    comm.aggregator(**options)(x).sum().backward()
    counted, wanted = {}, {}
    for name, exchange in comm.exchanges.items():
        for verb, sent in comm.bytes_sent_by(name).items():
            counted[f"{name} {verb}"] = torch.as_tensor(sent) / (3 * 8)
            wanted[f"{name} {verb}"] = exchange.relation.deliveries
    return counted, wanted


@pytest.mark.parametrize("edges", PLACEMENTS)
def test_all_windows_together_move_the_halo(edges):
    """There and back the demands of both exchanges: sent directly, no row is relayed."""
    whole = dgcl.launch(count_rows, 4, edges, {})
    for key, rows in whole[0][1].items():
        assert sum(int(counted[key].sum()) for counted, _ in whole) == rows
    for options in ({"windows": 2}, {"windows": 26}, {"by": "owner"}):
        for (found, _), (counted, _) in zip(dgcl.launch(count_rows, 4, edges, options), whole, strict=True):
            torch.testing.assert_close(found, counted, rtol=0, atol=0)


def hold(windows: int | None) -> tuple[int, int, int]:
    """Rows that the pool has place for; of the halo; and those that arrive in a fold."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 4000, (2, 60_000), generator=generator)
    comm = dgcl.build_comm_info(edges, "uniform", partition="random")
    x = torch.ones(comm.num_owned, 1024, requires_grad=True)
    aggregate = comm.aggregator(windows=windows)
    for _ in range(3):
        aggregate(x[:, :3].contiguous()).sum().backward()  # narrow rows leave no pieces that are too small
        aggregate(x).sum().backward()
    allocated: int = comm.transport.runtime.pool.bytes_allocated  # type: ignore[attr-defined]
    return allocated // 4096, comm.num_halo, comm.exchanges[HALO].program.num_arrivals


def test_two_windows_are_held_at_most():
    """In the forward two that were expanded, in the backward one and what arrives of it."""
    for held, num_halo, num_arrivals in dgcl.launch(hold, 3, 8):
        assert (
            held - 256 <= 1.02 * (num_halo + max(num_halo, num_arrivals)) / 8
        )  # 256: of the narrow rows, 1 MB
    for held, num_halo, num_arrivals in dgcl.launch(hold, 3, None):
        assert held >= max(num_halo, num_arrivals)


def leave_early(options: dict[str, Any]) -> str:
    comm = connect(CASE_BY_NAME["directed"], 3, "halo")
    x = comm.dispatch_features(features(26, 2))
    aggregate = comm.aggregator(**options)
    aggregate(x)
    if comm.rank == 2:
        comm.close()
        return "left"
    return said(lambda: aggregate(x))


@pytest.mark.parametrize("options", [{"windows": 3}, {"by": "owner"}], ids=str)
def test_a_rank_that_leaves_between_calls_is_named(options):
    *others, left = dgcl.launch(leave_early, 3, options)
    assert left == "left"
    for text in others:
        assert "rank 2" in text
        assert "window" in text


def refusals() -> list[str]:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, 3, "halo")
    rank = comm.rank
    asked: list[tuple[str, dict[str, Any]]] = [
        ("sum", {"windows": 0}),
        ("sum", {"windows": 2.0}),
        ("sum", {"windows": True}),
        ("sum", {"windows": 2, "by": "owner"}),
        ("sum", {"by": "class"}),
        ("max", {"windows": 2}),
        ("sum", {"windows": 2 + (rank == 1)}),
        ("sum", {"windows": 3, "by": "owner" if rank == 2 else "mixed"}),
        ("sum", {"windows": 2 - 2 * (rank == 1)}),
    ]
    texts = [said(lambda each=each: comm.aggregator(each[0], **each[1])) for each in asked]
    comm.aggregator(windows=26)  # and the communicator is as good as before
    return texts


def test_what_cannot_be_is_refused_on_every_rank():
    for rank, texts in enumerate(dgcl.launch(refusals, 3)):
        for text, wanted in zip(
            texts,
            (
                "windows must be an integer from 1 to 26",
                "windows must be an integer",
                "windows must be an integer",
                "windows must be 3, the number of ranks, or left out with by='owner' (got 2)",
                "by must be one of mixed, owner (got 'class')",
                "windows go with sums and means (got reduce='max')",
                "windows must be the same on every rank (got 2 on rank 0 and 3 on rank 1)",
                "by must be the same on every rank (got 'mixed' on rank 0 and 'owner' on rank 2)",
                "windows must be an integer from 1 to 26",
            ),
            strict=True,
        ):
            assert text.startswith(wanted), rank


def in_the_way() -> tuple[str, str]:
    """Rank 1 has an exchange under way when windows are asked for, and then is stopped by Ctrl-C."""
    comm = connect(CASE_BY_NAME["directed"], 3, "halo", timeout=30.0)
    pending = comm.expand_async(torch.ones(comm.num_owned, 2)) if comm.rank == 1 else None
    told = said(lambda: comm.aggregator(windows=3))
    if pending is None:
        pending = comm.expand_async(torch.ones(comm.num_owned, 2))
    assert pending.wait().tolist() == [[1.0, 1.0]] * comm.num_halo
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:

            def stop(*_: Any):
                raise KeyboardInterrupt

            patch.setattr(connecting, "check_windows", stop)
        try:
            comm.aggregator(windows=3)
        except KeyboardInterrupt:
            stopped = "stopped"
        except CommError as error:
            stopped = str(error)
    comm.close()
    dgcl.init()
    return told, stopped


def test_what_is_in_the_way_of_windows_on_one_rank_is_told_to_all(rank_pool: Any):
    for rank, (told, stopped) in enumerate(rank_pool(3).run(in_the_way)):
        assert "rank 1: expand 1 was started and is not finished" in told
        assert told.endswith(", on rank 1") == (rank != 1)
        assert "rank 1 was stopped by KeyboardInterrupt in aggregator" in stopped or (
            rank == 1 and stopped == "stopped"
        )


def both_at_once() -> tuple[int, int]:
    """Windows of two kinds, the whole halo, and other verbs, in turn on one communicator."""
    case = CASES[0]
    comm = connect(case, 3, "cover")
    x = comm.dispatch_features(features(26, 2))
    whole, mixed, owner = comm.aggregator(), comm.aggregator(windows=4), comm.aggregator(by="owner")
    again = comm.aggregator("mean", windows=4)
    assert again.operation.halo == mixed.operation.halo  # type: ignore[union-attr]
    before = whole(x)
    for _ in range(2):
        for aggregate in (mixed, owner, whole):
            torch.testing.assert_close(aggregate(x), before)
        comm.expand(x)
        comm.expand(x, PARTIAL)
    return comm.num_halo, comm.exchanges[HALO].program.num_halo


def test_windows_of_several_kinds_share_a_communicator():
    for num_halo, of_program in dgcl.launch(both_at_once, 3):
        assert num_halo == of_program
