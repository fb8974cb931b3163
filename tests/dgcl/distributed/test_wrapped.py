"""Distributed models that are compiled or wrapped give what they give by themselves."""

import pytest
import torch

pytest.importorskip("torch_geometric")
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import dgcl
import dgcl.nn
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, graph
from tests.dgcl.distributed.test_distribute import Model, step


def compiled() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A step of the model by itself, and compiled: attention, degrees, norms, and dropout of every kind."""
    comm, model, x, edge_index = set_up()
    expected = step(model, x, edge_index)
    comm.load_state_dict({"dropout_calls": 0})
    run = torch.compile(model, backend="eager")
    return expected, step(run, x, edge_index)


@pytest.mark.slow
def test_a_compiled_model_gives_what_the_eager_one_gives(rank_pool):
    expected, measured = rank_pool(2).run(compiled)[0]
    for one, other in zip(measured, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def set_up():
    comm = dgcl.build_comm_info(graph(), "uniform", part=torch.arange(NUM_NODES) % 2)
    torch.manual_seed(0)
    model = dgcl.distribute(Model(0.4).double())
    return comm, model, graph().x[comm.owned_ids].requires_grad_(), comm.local_graph("pyg").edge_index


def wrapped(kind) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A step of the model by itself, and wrapped over a data-parallel axis of one rank."""
    comm, model, x, edge_index = set_up()
    expected = step(model, x, edge_index)
    comm.load_state_dict({"dropout_calls": 0})
    alone = [dist.new_group([rank]) for rank in range(2)][comm.rank]
    if kind == "ddp":
        model = DistributedDataParallel(model, process_group=alone)
        return expected, step(model, x, edge_index)
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=DeviceMesh.from_group(alone, "cpu"))
    out = model(x, edge_index)
    (out * torch.arange(out.shape[1]).cos()).sum().backward()
    gradients = [p.grad.full_tensor() for p in model.parameters()]
    return expected, [dgcl.collect(out.detach()), *(comm.all_reduce_sum(each) for each in gradients)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_wrapped_models_give_what_the_model_gives(kind, rank_pool):
    expected, measured = rank_pool(2).run(wrapped, kind)[0]
    for one, other in zip(measured, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
