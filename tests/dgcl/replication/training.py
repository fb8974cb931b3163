"""The runs of :mod:`tests.dgcl.equivalence` with replicas; importable, because ranks that are processes need it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import dgcl
from dgcl.topology import Topology
from tests.dgcl.equivalence import ARCHITECTURES, CASE_BY_NAME, WIDTHS, Run, build_layers, train

LAYERS = len(WIDTHS) - 1


def on_rank(
    architecture: str,
    case_name: str,
    topology: str | Topology,
    world_size: int,
    hops: int,
    poison: float | None = None,
) -> Run:
    """The run of one rank, as :func:`tests.dgcl.equivalence.on_rank` has it, with replicas.

    ``poison``: what replaces the outputs of the first layer on the last ring, in the forward pass; of plain torch's
    layers.
    """
    case = CASE_BY_NAME[case_name]
    comm = dgcl.build_comm_info(
        case.graph,
        topology,
        part=case.part(world_size),
        strategy=f"replicas:{hops}",
        timeout=60.0,
    )
    layers = build_layers(ARCHITECTURES[architecture].layer, torch.float64)
    if poison is not None:
        layers[0].own.register_forward_hook(Poison(comm, poison))
    run = train(comm, architecture, case, layers)
    comm.close()
    return run


class Poison:
    """A forward hook that spoils the rows of ring K, which have none of their in-edges here."""

    def __init__(self, comm: dgcl.Communicator, value: float):
        self._value = value
        cut_off = (np.diff(comm.local.indptr) == 0) & (comm.local.in_degrees[: comm.num_owned] > 0)
        assert not cut_off[: comm.num_core].any()
        self._rows = torch.from_numpy(cut_off)
        assert comm.all_reduce_sum(self._rows.sum()) > 0

    def __call__(self, layer: Any, given: Any, out: Tensor) -> Tensor:
        return torch.where(self._rows.view(-1, *[1] * (out.dim() - 1)), self._value, out)
