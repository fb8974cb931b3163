"""Each layer and model of PyG gives on ranks what it gives on one device, or is refused by name."""

import copy
from pathlib import Path

import pytest
import torch

import dgcl
import dgcl.nn
from tests.dgcl.distributed import pyg_zoo
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, REFUSED, ZOO, graph, pyg

ROOT = Path(__file__).resolve().parents[3]


def seeded(make) -> torch.nn.Module:
    torch.manual_seed(0)
    module = make().double()
    for parameter in filter(torch.is_floating_point, module.parameters()):
        with torch.no_grad():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return module


def results(module, data, names, sync) -> list[torch.Tensor | None]:
    """The output and its gradients."""
    of_dgl = hasattr(data, "ndata")
    rows = {**data.ndata, **data.edata} if of_dgl else data
    x = rows["x"].requires_grad_()
    out = module(*[data] * of_dgl, *(rows[name] for name in names.split()))
    each = [rows.flatten(1) for rows in (out if isinstance(out, tuple) else (out,)) if len(rows) == len(x)]
    out = torch.cat(each, 1)
    values = torch.arange(out.shape[1], dtype=out.dtype).cos() + rows["pos"][:, :1]
    if out.requires_grad:
        (out * values).sum().backward()
    sync(module)
    return [out.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


def rank(zoo, module, names, strategy="halo"):
    data = dgcl.dispatch(
        zoo.graph(), topology="uniform", part=torch.arange(NUM_NODES) % 5 % 3, strategy=strategy
    )
    comm = dgcl.current_communicator()
    if comm.edges != "head" and zoo is pyg_zoo:
        assert torch.equal(data.edge_index, graph().edge_index[:, comm.local.edge_ids])
    assert (comm.windows is not None) == ("windows" in strategy)
    module = dgcl.distribute(copy.deepcopy(module))
    out, x_grad, *grads = results(module, data, names, dgcl.nn.sync_gradients)
    return [dgcl.collect(out), None if x_grad is None else dgcl.collect(x_grad), *grads]


def check(measured, expected):
    """The same numbers; a gradient of zeros is none."""
    for one, other in zip(measured, expected, strict=True):
        if one is None or other is None:
            assert one is None or not one.any()
        else:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def check_ranks(zoo, name, strategy):
    make, names = zoo.ZOO[name]
    module = seeded(make)
    measured = dgcl.launch(rank, 3, zoo, module, names, strategy)[0]
    check(measured, results(module, zoo.graph(), names, lambda module: None))


SUMS = [
    (name, strategy)
    for name in ("ARMAConv", "GCN", "GIN", "GraphConv", "GraphSAGE", "SAGEConv max")
    for strategy in ("cover", "tail", "windows:2", "grid:1,3,1", "grid:1,1,3")
]


@pytest.mark.sample(5, whole=True)
@pytest.mark.parametrize(
    "name, strategy", [*((name, "halo") for name in sorted(ZOO.keys() - REFUSED)), *SUMS]
)
def test_ranks_give_what_one_device_gives(name, strategy):
    check_ranks(pyg_zoo, name, strategy)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_exact_is_refused_by_name(name):
    if not hasattr(pyg, name.split()[0]):
        pytest.skip(f"this PyG has no {name}")

    def refused():
        dgcl.build_comm_info(graph(), "uniform", part=torch.arange(NUM_NODES) % 3)
        module = ZOO[name][0]()
        classes = [type(each) for each in module.modules()]
        with pytest.raises(
            ValueError, match=r"cannot be distributed as it is:\n.*\(torch_geometric\.nn\.\w+\) .*; "
        ):
            dgcl.distribute(module)
        assert classes == [type(each) for each in module.modules()], "something was changed"

    dgcl.launch(refused, 3)


def table(framework, zoo, refused) -> list[str]:
    """Rows of the page's table."""
    return [
        f"| {framework}, {what} | "
        + ", ".join(f"`{name}`" for name in sorted(names) if name[0].isupper() and " " not in name)
        + " |"
        for what, names in (("equal to one device", zoo.keys() - refused), ("refused by name", refused))
    ]


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "distribute.md").read_text().splitlines()
    assert all(row in page for row in table("PyG", ZOO, REFUSED))
