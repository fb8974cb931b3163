"""Aggregations in windows give those of a dense matrix, and move and hold what they are meant to.

==========================  ===================================================================================
what                        judged by
==========================  ===================================================================================
sums, gradients             ``A @ x`` in float64, autograd through it; the toy graph's published numbers
rows moved                  those of the whole halo, counted by the runtime
memory                      rows of the two largest windows, as the pool rounds them
a rank that fails           every other rank names it, wherever in the windows it was
==========================  ===================================================================================
"""

import itertools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.aggregation import connect_aggregators as connecting
from dgcl.aggregation.block import Block
from dgcl.errors import CommError
from dgcl.program.exchange import HALO, PARTIAL
from tests.dgcl.aggregation.support_aggregator import (
    CASE_BY_NAME,
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
from tests.dgcl.aggregation.support_windows import WINDOWS, most_windows
from tests.dgcl.awkward import CASES
from tests.dgcl.support_plans import random_world
from tests.dgcl.support_ranks import join


def on_rank(
    name: str, world_size: int, edges: str, options: dict[str, Any], channel: str = "auto"
) -> list[Results]:
    case = CASE_BY_NAME[name]
    comm = connect(case, world_size, edges, channel=channel)
    return [aggregated(comm, case, *each, **most_windows(name, options)) for each in SUMS]


@pytest.mark.sample(24)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASE_BY_NAME)
def test_equals_the_dense_product(name, windows, edges, world_size):
    for found in dgcl.launch(on_rank, world_size, name, world_size, edges, WINDOWS[windows]):
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            assert_close(each, expected(name, reduce, weighted))


def on_a_grid(grid: str, options: dict[str, Any]) -> list[Results]:
    case = CASE_BY_NAME["multi-edges"]
    comm = dgcl.build_comm_info(case.graph, "uniform", part=case.part(4), strategy=f"grid:{grid}")
    return [aggregated(comm, case, *each, **options) for each in SUMS]


@pytest.mark.parametrize("windows", ["2", "owner"])
@pytest.mark.parametrize("grid", ["2,1,2", "1,2,2", "2,2,1"])
def test_slices_of_rows(grid, windows):
    for found in dgcl.launch(on_a_grid, 4, grid, WINDOWS[windows]):
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            if weighted != "learned" or grid.endswith(",1"):  # each slice has a part of an edge's gradient
                assert_close(each, expected("multi-edges", reduce, weighted))


@pytest.mark.slow
@pytest.mark.parametrize("channel", ["memory", "collective"])
@pytest.mark.parametrize("windows", ["2", "5", "owner"])
@pytest.mark.parametrize("edges", PLACEMENTS)
def test_between_processes(edges, windows, channel, rank_pool):
    for found in rank_pool(3).run(on_rank, "multi-edges", 3, edges, WINDOWS[windows], channel):
        for each, (reduce, weighted) in zip(found, SUMS, strict=True):
            assert_close(each, expected("multi-edges", reduce, weighted))


@pytest.mark.sample(6)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_the_toy_graph(windows, edges, world_size):
    def train() -> dict[str, float]:
        return train_the_toy(edges, world_size, **WINDOWS[windows])

    for found in dgcl.launch(train, world_size):
        assert found == pytest.approx(TOY, rel=1e-12)


def differentiate_twice(edges: str, options: dict[str, Any]) -> Results:
    case = CASE_BY_NAME["self-loops"]
    comm = connect(case, 3, edges)
    x = comm.dispatch_features(torch.complex(features(26, 2), features(26, 2, seed=1))).requires_grad_()
    y = comm.aggregator(**options)(x)
    (gradient,) = torch.autograd.grad((y.real**3 + y.imag**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((gradient.abs() ** 2).sum(), x)
    return {"second": comm.collect(second, None)}


@pytest.mark.parametrize("edges", ["halo", "cover"])
def test_second_derivatives_and_complex_rows(edges):
    def both() -> list[Results]:
        return [differentiate_twice(edges, options) for options in ({}, WINDOWS["5"], WINDOWS["owner"])]

    for whole, *others in dgcl.launch(both, 3):
        for found in others:
            assert_close(found, whole)


def relayed(trees: str) -> list[Results]:
    """Rows that travel over ranks that do not read them, along plans that no planner made."""
    world = random_world(3, 4, trees)
    comm = join(world.shares())
    found = []
    for options in ({}, *WINDOWS.values()):
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


def twice(edges: str, options: dict[str, Any]) -> list[bytes]:
    case = CASE_BY_NAME["hub"]
    comm = connect(case, 4, edges)
    x = comm.dispatch_features(features(26, 33, dtype=torch.float32)).requires_grad_()
    found = []
    for _ in range(3):
        aggregate = comm.aggregator("mean", **options)
        y = aggregate(x)
        (gradient,) = torch.autograd.grad((y**2).sum(), x)
        found.append(y.detach().numpy().tobytes() + gradient.numpy().tobytes())
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("options", [{"windows": 3}, {"by": "owner"}], ids=str)
@pytest.mark.parametrize("edges", PLACEMENTS)
def test_the_same_input_gives_the_same_bits(edges, options):
    first_run, second_run = (dgcl.launch(twice, 4, edges, options) for _ in range(2))
    assert first_run == second_run
    for first, *others in first_run:
        assert all(other == first for other in others)


def count_rows(edges: str, options: dict[str, Any]) -> dict[str, list[int]]:
    case = CASE_BY_NAME["multi-edges"]
    comm = connect(case, 4, edges)
    x = comm.dispatch_features(features(26, 3)).requires_grad_()
    comm.aggregator(**options)(x).sum().backward()
    return {
        f"{name} {verb}": sent.tolist()
        for name in comm.exchanges
        for verb, sent in comm.bytes_sent_by(name).items()
    }


@pytest.mark.parametrize("options", [{"windows": 2}, {"windows": 26}, {"by": "owner"}], ids=str)
@pytest.mark.parametrize("edges", PLACEMENTS)
def test_all_windows_together_move_the_halo(edges, options):
    """To each peer, of each exchange, in both verbs."""
    assert dgcl.launch(count_rows, 4, edges, options) == dgcl.launch(count_rows, 4, edges, {})


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


class Sums(threading.local):
    """Sums that this thread may still make; one more raises."""

    left = 1000


def fail_at(sums: Sums, place: int, options: dict[str, Any], backward: bool):
    """Rank 1 fails in its sum number ``place``."""
    comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=60.0)
    x = comm.dispatch_features(features(26, 2)).requires_grad_()
    aggregate = comm.aggregator(**options)
    y = aggregate(x) if backward else x.sum()
    if comm.rank == 1:
        sums.left = place
    if backward:
        y.sum().backward()
    else:
        aggregate(x)
    for _ in range(3):  # ranks that need no row of rank 1's are stopped by a later call
        comm.expand(x.detach())


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "options, place",
    [
        *itertools.product(({"windows": 3}, {"by": "owner"}), (0, 2, 4, 6)),
        ({}, 1),  # without windows there are four sums, the third one between the exchanges
        ({}, 2),
        ({}, 3),
    ],
    ids=str,
)
def test_an_exception_within_a_window_is_named_on_every_rank(options, place, backward, monkeypatch):
    sums, real = Sums(), Block.sum

    def count(self: Block, *given: Any, **kinds: Any):
        if sums.left == 0:
            raise ZeroDivisionError("in a window")
        sums.left -= 1
        real(self, *given, **kinds)

    monkeypatch.setattr(Block, "sum", count)
    with pytest.raises(ZeroDivisionError, match="in a window") as raised:
        dgcl.launch(fail_at, 3, sums, place, options, backward)
    notes = "\n".join(raised.value.__notes__)
    assert "raised on rank 1" in notes
    for rank in (0, 2):
        assert f"rank {rank}: CommError: rank {rank} stops because" in notes


def die_in_a_window(folder: str, backward: bool):
    """Rank 1 is killed in its fifth sum; the others write down what they are told."""
    comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=60.0)
    x = comm.dispatch_features(features(26, 2)).requires_grad_()
    aggregate = comm.aggregator(windows=3)
    y = aggregate(x) if backward else x.sum()
    real, left = Block.sum, iter(range(5, -1, -1))

    def count(self: Block, *given: Any, **kinds: Any):
        if comm.rank == 1 and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, *given, **kinds)

    Block.sum = count  # type: ignore[method-assign]
    try:
        if backward:
            y.sum().backward()
        for _ in range(3):
            aggregate(x)
    except CommError as error:
        Path(folder, f"rank-{comm.rank}").write_text(str(error))
        raise


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_that_is_killed_within_a_window_is_named(tmp_path, backward, forked_ranks):
    with pytest.raises((CommError, RuntimeError)):
        dgcl.launch(die_in_a_window, 3, str(tmp_path), backward, ranks="processes")
    for rank in (0, 2):
        assert "rank 1" in Path(tmp_path, f"rank-{rank}").read_text()


def leave_early(options: dict[str, Any]) -> str:
    comm = connect(CASE_BY_NAME["directed"], 3, "halo")
    x = comm.dispatch_features(features(26, 2))
    aggregate = comm.aggregator(**options)
    aggregate(x)
    if comm.rank == 2:
        comm.close()
        return "left"
    try:
        aggregate(x)
    except CommError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("options", [{"windows": 3}, {"by": "owner"}], ids=str)
def test_a_rank_that_leaves_between_calls_is_named(options):
    *others, left = dgcl.launch(leave_early, 3, options)
    assert left == "left"
    for said in others:
        assert "rank 2" in said
        assert "window" in said


def refusals() -> list[str]:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, 3, "halo")
    rank = comm.rank
    said = []
    for reduce, options in (
        ("sum", {"windows": 0}),
        ("sum", {"windows": 2.0}),
        ("sum", {"windows": True}),
        ("sum", {"windows": 2, "by": "owner"}),
        ("sum", {"by": "class"}),
        ("max", {"windows": 2}),
        ("sum", {"windows": 2 + (rank == 1)}),
        ("sum", {"windows": 3, "by": "owner" if rank == 2 else "mixed"}),
        ("sum", {"windows": 2 - 2 * (rank == 1)}),
    ):
        try:
            comm.aggregator(reduce, **options)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            said.append(str(error))
        else:
            said.append("nothing")
    comm.aggregator(windows=26)  # and the communicator is as good as before
    return said


def test_what_cannot_be_is_refused_on_every_rank():
    for rank, said in enumerate(dgcl.launch(refusals, 3)):
        for text, wanted in zip(
            said,
            (
                "windows must be from 1 to 26",
                "windows must be an integer",
                "windows must be an integer",
                "windows must be 3, the number of ranks, or left out with by='owner' (got 2)",
                "by must be one of mixed, owner (got 'class')",
                "windows go with sums and means (got reduce='max')",
                "windows must be the same on every rank (got 2 on rank 0 and 3 on rank 1)",
                "by must be the same on every rank (got 'mixed' on rank 0 and 'owner' on rank 2)",
                "windows must be from 1 to 26",
            ),
            strict=True,
        ):
            assert text.startswith(wanted), rank


def without_memory() -> tuple[str, Tensor]:
    """Rank 1 has none for its windows' tables the first time."""
    case = CASE_BY_NAME["directed"]
    comm = connect(case, 3, "halo", timeout=30.0)
    try:
        comm.aggregator(windows=3)
    except (MemoryError, ValueError) as error:
        said = str(error)
    return said, comm.collect(comm.aggregator(windows=3)(comm.dispatch_features(features(26, 3))), None)


@pytest.mark.parametrize("step", ["halo_windows", "window_programs"])
def test_a_rank_without_memory_for_windows_is_named_and_may_try_again(step, monkeypatch):
    real, failures = getattr(connecting, step), [MemoryError("no memory for windows")]

    def fail_once(program: Any, *given: Any) -> Any:
        if program.rank == 1 and failures:
            raise failures.pop()
        return real(program, *given)

    monkeypatch.setattr(connecting, step, fail_once)
    for rank, (said, found) in enumerate(dgcl.launch(without_memory, 3)):
        assert said == "no memory for windows" + (", on rank 1" if rank != 1 else "")
        torch.testing.assert_close(found, dense(CASE_BY_NAME["directed"], "sum", None) @ features(26, 3))


def in_the_way() -> tuple[str, str]:
    """Rank 1 has an exchange under way when windows are asked for, and then is stopped by Ctrl-C."""
    comm = connect(CASE_BY_NAME["directed"], 3, "halo", timeout=30.0)
    pending = comm.expand_async(torch.ones(comm.num_owned, 2)) if comm.rank == 1 else None
    try:
        comm.aggregator(windows=3)
    except ValueError as error:
        said = str(error)
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
    return said, stopped


def test_what_is_in_the_way_of_windows_on_one_rank_is_told_to_all(rank_pool: Any):
    for rank, (said, stopped) in enumerate(rank_pool(3).run(in_the_way)):
        assert "rank 1: expand 1 was started and is not finished" in said
        assert said.endswith(", on rank 1") == (rank != 1)
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
