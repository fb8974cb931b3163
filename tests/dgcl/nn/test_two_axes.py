"""A graph's axis and a data-parallel one: the numbers of one device on all samples."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import dgcl
import dgcl.nn
from dgcl.errors import InexactWarning
from dgcl.ranks.context import context

EXAMPLES = str(Path(__file__).resolve().parents[3] / "examples")


def example():
    """examples/two_axes.py."""
    sys.path.insert(0, EXAMPLES)
    try:
        return importlib.import_module("two_axes")
    finally:
        sys.path.remove(EXAMPLES)


def on_mesh(function, *args):
    """What a rank's function returns, and the texts of its warnings; the pool's own control plane is put back."""
    control = context.control
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", InexactWarning)
            value = function(*args)
        return value, [str(each.message) for each in caught if each.category is InexactWarning]
    finally:
        context.control = control


def train():
    """The example's training."""
    return on_mesh(example().train, True)


def one_device() -> tuple[list[list[float]], list[torch.Tensor]]:
    """The same on one device with dense matrices: a loss for each sample, of which the mean is stepped on."""
    module = example()
    edges, features = module.samples(2)
    dense = torch.zeros(module.NUM_NODES, module.NUM_NODES, dtype=torch.float64)
    dense.index_put_((edges[1], edges[0]), torch.tensor(1.0, dtype=torch.float64), accumulate=True)
    dense /= dense.sum(1, keepdim=True).clamp(min=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(module.STEPS):
        optimizer.zero_grad()
        each = ((dense @ model(features[..., :4]) - features[..., 4:]) ** 2).mean((1, 2))
        each.mean().backward()
        optimizer.step()
        losses.append(each.tolist())
    return losses, [parameter.detach() for parameter in model.parameters()]


def wrong(rank_of_pool: int) -> list[str]:
    """Messages of axes that cannot be, by rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "graph"))
    model, said = nn.Linear(1, 1), []
    for group in (mesh, "graph"):
        with pytest.raises((TypeError, ValueError), match="group must be") as error:
            dgcl.init(group)
        said.append(str(error.value))
    dgcl.init(mesh["graph"])
    comm = dgcl.build_comm_info([[0, 1, 2], [1, 2, 3]])
    with pytest.raises(ValueError, match="data_parallel must be ranks with other samples") as error:
        dgcl.nn.sync_gradients(model, data_parallel=mesh["graph"])
    model(torch.ones(1, 1) * (1 + dist.get_rank())).sum().backward()
    own = DistributedDataParallel(model, process_group=mesh["data"].get_group())
    own.zero_grad()
    own(torch.full((1, 1), 1.0 + dist.get_rank())).sum().backward()
    dgcl.nn.sync_gradients(model)
    comm.close()
    return [*said, float(model.weight.grad)]


def test_refusals_and_ddp_over_the_other_axis(rank_pool):
    """Inputs are 1 to 4: the sum over graphs' ranks of the means over the samples is (1 + 2 + 3 + 4) / 2."""
    for (mesh, word, gradient), _ in rank_pool(4).run(on_mesh, wrong, 0):
        assert "2 dimensions" in mesh
        assert "got 'graph'" in word
        assert gradient == 5.0


def shared_out() -> tuple[list[float], list[torch.Tensor]]:
    """Losses and parameters with FSDP along "data", from the start of :func:`one_device`; and what is refused."""
    module = example()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "graph"))
    dgcl.init(mesh["graph"])
    edges, features = module.samples(2)
    comm = dgcl.build_comm_info(dgcl.graph.as_graph(edges, num_nodes=module.NUM_NODES))
    sample, graph = comm.dispatch_features(features[mesh.get_local_rank("data")]), comm.local_graph("csr")
    losses = []
    for along in ("graph", "data"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        fsdp.fully_shard(model, mesh=mesh[along])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for axis in (mesh["data"], *[None] * (module.STEPS if along == "data" else 1)):
            optimizer.zero_grad()
            out = graph.mean(comm.expand(model(sample[:, :4].contiguous())))
            loss = dgcl.nn.loss(nn.functional.mse_loss, comm=comm)(out, sample[:, 4:])
            loss.backward()
            if axis is not None or along == "graph":
                with pytest.raises(ValueError, match="leave data_parallel out here"):
                    dgcl.nn.sync_gradients(model, data_parallel=axis)
                continue
            dgcl.nn.sync_gradients(model)
            optimizer.step()
            losses.append(loss.item())
    comm.close()
    return losses, [parameter.full_tensor().detach() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "call",
    [
        (train,),
        pytest.param(
            (on_mesh, shared_out),
            marks=pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="torch 2.6 and later have it"),
        ),
    ],
)
def test_the_numbers_of_one_device(rank_pool, call):
    losses, parameters = one_device()
    for rank, ((found, own), texts) in enumerate(rank_pool(4).run(*call)):
        assert not texts
        assert found == pytest.approx([each[rank // 2] for each in losses], rel=1e-10)
        for parameter, expected in zip(own, parameters, strict=True):
            torch.testing.assert_close(parameter, expected, rtol=1e-10, atol=1e-10)
