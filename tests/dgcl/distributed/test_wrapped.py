"""Distributed models that are compiled or wrapped give what they give by themselves."""

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import dgcl
import dgcl.nn
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, ZOO, graph
from tests.dgcl.distributed.test_distribute import Model, step
from tests.dgcl.distributed.test_pyg_zoo import check, seeded


def of_model(name: str) -> tuple[Any, Any]:
    """What makes a model, and its arguments on this rank."""
    name, _, strategy = name.partition(" on ")
    if name == "HeteroConv":
        from tests.dgcl.distributed import test_hetero as types

        data = dgcl.dispatch(types.graph(), topology="uniform", part=torch.arange(41) % 2)
        return types.ByType, (data.x_dict, data.edge_index_dict)
    if name.startswith("DGL"):
        from tests.dgcl.distributed import dgl_zoo

        g = dgcl.dispatch(dgl_zoo.graph(), topology="uniform")
        return dgl_zoo.ZOO[name[4:]][0], (g, g.ndata["x"])
    data = dgcl.dispatch(graph(), topology="uniform", strategy=strategy or None)
    make, names = (ZOO | {"dropout": (lambda: Model(0.4), "x edge_index")})[name]
    return make, [data[each] for each in names.split()]


def compiled(name: str) -> list[list[torch.Tensor | None]]:
    """A step of the model by itself, and compiled."""
    torch._dynamo.reset()  # or a limit of what is compiled again would leave it eager
    make, arguments = of_model(name)
    model, results = dgcl.distribute(seeded(make)), []
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        dgcl.current_communicator().load_state_dict({"dropout_calls": 0})
        out = run(*arguments)
        out = torch.cat(list(out.values())) if isinstance(out, dict) else out
        out.flatten(1).cos().sum().backward()
        results.append([out.detach(), *(parameter.grad for parameter in model.parameters())])
    return results


#: "dropout" has GAT and GCN.
SLOW = (
    "SAGEConv", "GINConv", "dropout", "GCN", "TransformerConv", "PNAConv", "GraphSAGE", "RGCNConv",
    "a step of MeshGraphNet", "HeteroConv", "DGL GraphConv", "DGL GATConv"
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["GCNConv on cover", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)],
)
def test_a_compiled_model_gives_what_the_eager_one_gives(name, rank_pool):
    expected, measured = rank_pool(2).run(compiled, name)[0]
    check(measured, expected)


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
    check(measured, expected)
