"""Maxima and minima are those of the whole graph, wherever edges are summed, and so are their gradients.

==============================  ========================================================================
what                            judged by
==============================  ========================================================================
values, gradients, ties         plain Python, vertex by vertex, in the order (NaN, value, smallest id)
any shape, 16 bits              the same on one rank
rows that are relayed           the same, along plans that no planner made
rows that travel                the ways of the plan's trees, walked one by one
==============================  ========================================================================
"""

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.planner.plan import Plan
from dgcl.program.exchange import HALO, PARTIAL
from tests.support.aggregator import (
    CASE_BY_NAME,
    PLACEMENTS,
    WIDTH,
    Results,
    assert_close,
    connect,
    features,
)
from tests.support.extreme_sums import assert_expected, on_rank, reduced
from tests.support.small_machines import line


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
