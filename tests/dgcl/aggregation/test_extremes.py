"""Maxima and minima are those of the whole graph, wherever edges are summed, and so are their gradients.

==============================  ========================================================================
what                            judged by
==============================  ========================================================================
values, gradients, ties         plain Python, vertex by vertex, in the order (NaN, value, smallest id)
any shape, 16 bits              the same on one rank
rows that are relayed           the same, along plans that no planner made
rows that travel                the ways of the plan's trees, walked one by one
a rank that fails between the   every other rank names it
exchanges, or in the first one
==============================  ========================================================================
"""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.aggregation import contribution_exchange, extreme_kernels
from dgcl.errors import CommError
from dgcl.planner.plan import Plan
from dgcl.program.exchange import HALO, PARTIAL
from tests.dgcl.aggregation.support_aggregator import (
    CASE_BY_NAME,
    PLACEMENTS,
    WIDTH,
    Results,
    assert_close,
    connect,
    features,
)
from tests.dgcl.aggregation.support_extremes import assert_expected, expected, reduced
from tests.planner.machines import line


def on_rank(name: str, world_size: int, edges: str, channel: str = "auto") -> list[Results]:
    case = CASE_BY_NAME[name]
    comm = connect(case, world_size, edges, channel=channel)
    return [reduced(comm, case, reduce) for reduce in ("max", "min")]


@pytest.mark.sample(4)
@pytest.mark.parametrize("world_size", [1, 3, 8])
@pytest.mark.parametrize("edges", PLACEMENTS)
@pytest.mark.parametrize("name", CASE_BY_NAME)
def test_extremes_go_to_the_smallest_id_among_equals(name, edges, world_size):
    assert_expected(dgcl.launch(on_rank, world_size, name, world_size, edges), name)


@pytest.mark.slow
def test_between_processes(rank_pool):
    assert_expected(rank_pool(3).run(on_rank, "multi-edges", 3, "cover"), "multi-edges")


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["tail", "cover"])
def test_over_the_network(edges, rank_pool):
    assert_expected(rank_pool(3).run(on_rank, "multi-edges", 3, edges, "collective"), "multi-edges")


def on_a_line(edges: str) -> list[Results]:
    """Ranks in a row: what reaches the owner from the far end is passed on by the others."""
    case = CASE_BY_NAME["self-loops"]
    comm = dgcl.build_comm_info(case.graph, line(4), part=case.part(4), strategy=edges)
    assert comm.exchanges[PARTIAL].plan.num_stages > 1
    return [reduced(comm, case, reduce) for reduce in ("max", "min")]


@pytest.mark.parametrize("edges", ["tail", "cover"])
def test_rows_that_are_relayed(edges):
    assert_expected(dgcl.launch(on_a_line, 4, edges), "self-loops")


def of_any_shape(edges: str) -> list[Tensor]:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, comm_size(edges), "halo" if edges == "one rank" else edges)
    aggregate = comm.aggregator("max")
    inputs = [comm.dispatch_features(features(26, *shape)) for shape in ((), (0,), (1,), (2, 3), (0, 3))]
    inputs.append(comm.dispatch_features(features(26, 6))[:, ::2])
    found = [comm.collect(aggregate(x), None) for x in inputs]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = comm.dispatch_features(features(26, 3).to(dtype)).requires_grad_()
        y = aggregate(x)
        assert y.dtype == dtype
        y.backward(comm.dispatch_features(features(26, 3, seed=2).round().to(dtype)))  # exact in any order
        found += [comm.collect(y.detach(), None), comm.collect(x.grad, None)]
    with torch.inference_mode():
        found.append(comm.collect(comm.aggregator("min")(comm.dispatch_features(features(26, 2))), None))
    return found


def comm_size(edges: str) -> int:
    return 1 if edges == "one rank" else 3


@pytest.mark.parametrize("edges", ["tail", "cover"])
def test_any_shape_and_type(edges):
    (wanted,) = dgcl.launch(of_any_shape, 1, "one rank")
    for found in dgcl.launch(of_any_shape, 3, edges):
        for each, other in zip(found, wanted, strict=True):
            assert torch.equal(each, other)


def count_rows(edges: str) -> tuple[dict[str, int], dict[str, int]]:
    comm = connect(CASE_BY_NAME["multi-edges"], 4, edges)
    x = comm.dispatch_features(features(26, 3)).requires_grad_()
    for _ in range(2):
        comm.aggregator("max")(x).sum().backward()
    counted = {
        f"{name} {verb}": int(sent.sum())
        for name in comm.exchanges
        for verb, sent in comm.bytes_sent_by(name).items()
    }
    partial = comm.exchanges[PARTIAL].plan
    return counted, {HALO: comm.exchanges[HALO].plan.trees.rows_moved(), PARTIAL: hops(partial)}


def hops(plan: Plan) -> int:
    """Edges on the ways between owners and destinations, for all rows together."""
    total = 0
    for tree in range(plan.trees.num_trees):
        edges = range(*plan.trees.edge_ptr[tree : tree + 2].tolist())
        number = plan.trees.tree_class[tree]
        depth = {int(plan.relation.source[number]): 0}
        for edge in edges:  # parents first
            depth[int(plan.trees.edge_dst[edge])] = depth[int(plan.trees.edge_src[edge])] + 1
        wanted = plan.relation.dest_ranks(number)
        total += int(plan.trees.tree_count[tree]) * sum(depth[rank] for rank in wanted)
    return total


@pytest.mark.parametrize("edges", ["tail", "cover"])
def test_each_contribution_travels_its_way_of_the_fold_with_its_ids(edges):
    found = dgcl.launch(count_rows, 4, edges)
    planned = found[0][1]
    total = {key: sum(counted[key] for counted, _ in found) for key in found[0][0]}
    assert total[f"{HALO} expand"] == total[f"{HALO} fold"] == 2 * planned[HALO] * 3 * 8
    assert total[f"{PARTIAL} fold"] == 2 * planned[PARTIAL] * 3 * 8  # gradients alone
    assert total[f"{PARTIAL} expand"] == 2 * total[f"{PARTIAL} fold"]  # and ids of as many bytes


def twice(edges: str) -> list[bytes]:
    comm = connect(CASE_BY_NAME["hub"], 4, edges)
    x = comm.dispatch_features(features(26, 33, dtype=torch.float32)).requires_grad_()
    found = []
    for _ in range(3):
        y = comm.aggregator("max")(x)
        (gradient,) = torch.autograd.grad((y**2).sum(), x)
        found.append(y.detach().numpy().tobytes() + gradient.numpy().tobytes())
    return found


def test_the_same_input_gives_the_same_bits():
    first_run, second_run = (dgcl.launch(twice, 4, "cover") for _ in range(2))
    assert first_run == second_run
    for first, *others in first_run:
        assert all(other == first for other in others)


def sage(edges: str) -> Results:
    case = CASE_BY_NAME["directed"]
    comm = connect(case, 3, edges)
    conv = dgcl.nn.SAGEConv(WIDTH, 2, aggr="max").double()
    for each in conv.parameters():
        each.data.copy_(torch.linspace(-1, 1, each.numel()).view(each.shape))
    x = comm.dispatch_features(features(26, WIDTH)).requires_grad_()
    y = conv(torch.tanh(x))
    (y**2).sum().backward()
    return {"y": comm.collect(y.detach(), None), "x": comm.collect(x.grad, None)}


def test_layers_take_maxima_anywhere():
    wanted = dgcl.launch(sage, 3, "halo")[0]
    for found in dgcl.launch(sage, 3, "cover"):
        assert_close(found, wanted)


class Calls(threading.local):
    """Searches for extremes that this thread may still begin; one more raises."""

    left = 1000


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_an_exception_between_the_exchanges_is_named_on_every_rank(place, backward, monkeypatch):
    calls = Calls()

    def fail_at(real: Any) -> Any:
        def count(*given: Any):
            if calls.left == 0:
                raise ZeroDivisionError("between exchanges")
            calls.left -= 1
            real(*given)

        return count

    def on_rank():
        comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=60.0)
        x = comm.dispatch_features(features(26, 2)).requires_grad_()
        aggregate = comm.aggregator("max")
        y = aggregate(x)
        if comm.rank == 1:
            calls.left = place
        if backward:
            y.sum().backward()
        else:
            aggregate(x)
        for _ in range(3):  # ranks that need no row of rank 1's are stopped by a later call
            comm.expand(x.detach())

    monkeypatch.setattr(extreme_kernels, "extremes", fail_at(extreme_kernels.extremes))
    monkeypatch.setattr(extreme_kernels, "scatter_rows", fail_at(extreme_kernels.scatter_rows))
    with pytest.raises(ZeroDivisionError, match="between exchanges") as raised:
        dgcl.launch(on_rank, 3)
    notes = "\n".join(raised.value.__notes__)
    assert "raised on rank 1" in notes
    for rank in (0, 2):
        assert f"rank {rank}: CommError: rank {rank} stops because" in notes


def die_between(folder: str, backward: bool):
    """Rank 1 is killed when it has received, and has not sent what it found; the others write down what they hear."""
    comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=60.0)
    x = comm.dispatch_features(features(26, 2)).requires_grad_()
    y = comm.aggregator("max")(x)
    if comm.rank == 1:
        name = "scatter_rows" if backward else "extremes"
        setattr(extreme_kernels, name, lambda *given: os.kill(os.getpid(), signal.SIGKILL))
    try:
        if backward:
            y.sum().backward()
        for _ in range(3):
            comm.aggregator("max")(x)
    except CommError as error:
        Path(folder, f"rank-{comm.rank}").write_text(str(error))
        raise


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_that_is_killed_between_the_exchanges_is_named(tmp_path, backward, forked_ranks):
    with pytest.raises((CommError, RuntimeError)):
        dgcl.launch(die_between, 3, str(tmp_path), backward, ranks="processes")
    for rank in (0, 2):
        assert "rank 1" in Path(tmp_path, f"rank-{rank}").read_text()


@pytest.mark.parametrize("fails_on", [0, 1])
def test_a_rank_without_memory_for_the_exchange_is_named_and_may_try_again(fails_on, monkeypatch):
    left = Calls()
    left.left = 0

    def fail_once(real: Any) -> Any:
        def call(*given: Any) -> Any:
            if left.left == 1:
                left.left = 0
                raise MemoryError("no memory for tables")
            return real(*given)

        return call

    def on_rank() -> tuple[str, Results]:
        case = CASE_BY_NAME["directed"]
        comm = connect(case, 3, "cover", timeout=30.0)
        left.left = int(comm.rank == fails_on)
        with pytest.raises((MemoryError, ValueError)) as raised:
            comm.aggregator("max")
        return str(raised.value), reduced(comm, case, "max")

    name = "contribution_rows" if fails_on else "contribution_program"
    monkeypatch.setattr(contribution_exchange, name, fail_once(getattr(contribution_exchange, name)))
    for rank, (said, found) in enumerate(dgcl.launch(on_rank, 3)):
        assert said.startswith("no memory for tables")
        assert said.endswith(f"on rank {fails_on}") or rank == fails_on
        torch.testing.assert_close(found, expected("directed", "max"), equal_nan=True)
