"""Where strings hash differently on each rank, as in processes of their own, rows are exchanged in one order."""

from contextlib import closing

import pytest
import torch

from tests.dgcl.distributed import dgl_zoo, pyg_zoo, test_hetero
from tests.dgcl.distributed.test_pyg_zoo import check, rank, results, seeded
from tests.dgcl.rank_pool import RankPool

#: Layers with several tensors at sources.
LAYERS = {
    pyg_zoo: (
        "FAConv", "GATConv", "GATv2Conv", "HEATConv", "PPFConv", "PNAConv", "PointTransformerConv", "RGATConv",
        "ResGatedGraphConv", "TransformerConv", "a class of one's own", "a message of many tensors",
        "a step of MeshGraphNet"
    ),
    dgl_zoo: ("DotGatConv", "EGATConv", "EGNNConv", "GATConv", "GMMConv", "HGTConv"),
}  # fmt: skip


def check_layers() -> int:
    torch.set_default_dtype(torch.float64)
    for zoo, layers in LAYERS.items():
        for make, names in map(zoo.ZOO.get, layers):
            module = seeded(make)
            measured = rank(zoo, module, names)
            if measured[0] is not None:
                check(measured, results(module, zoo.graph(), names, lambda module: None))
    model, reference = test_hetero.expected("DGL")
    measured = test_hetero.on_rank("DGL", model)
    if measured[0] is not None:
        test_hetero.check_rank(measured, reference)
    return hash("x")


@pytest.mark.slow
def test_ranks_give_what_one_device_gives():
    with closing(RankPool(3, "spawn")) as pool:
        assert len({*pool.run(check_layers)}) == 3
