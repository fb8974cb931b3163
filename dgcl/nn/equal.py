"""Compares what a model holds over ranks, where that must be the same, bit for bit."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.nn import Module, Parameter

from dgcl.errors import DisagreementError
from dgcl.nn.layer_arguments import current, require_parameters
from dgcl.ranks.tensors import beside_the_graph
from dgcl.topology.checks import check_flag

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


@beside_the_graph
def check_equal(
    model: Module | Iterable[Parameter], *, gradients: bool = False, comm: Communicator | None = None
) -> None:
    """Raise where a parameter is not the same on every rank, and name the first. Collective; for debugging.

    Args:
        model: The model, or its parameters; the same ones in the same order on every rank.
        gradients: Compare the gradients as well; call it after :func:`dgcl.nn.sync_gradients`.
        comm: The communicator; default the current one.

    Raises:
        DisagreementError: On every rank: which tensor differs, and on which ranks; or the models are not alike.
    """
    comm = current(comm)
    check_flag(gradients, "gradients")
    if isinstance(model, Module):
        named = list(model.named_parameters())
    else:
        named = [(f"parameter {place}", each) for place, each in enumerate(require_parameters(model))]
    tensors = [*named, *((f"gradient of {name}", each.grad) for name, each in named if gradients)]
    kinds, checksums = [], []
    for name, tensor in tensors:
        if tensor is not None:
            kinds.append(f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}")
            # A copy: FSDP frees parameters' storages, and cannot where numpy has a view of one.
            copy = torch.clone(tensor.detach().cpu(), memory_format=torch.contiguous_format)
            checksums.append(zlib.crc32(copy.reshape(-1).view(torch.uint8).numpy().data))
    with comm.collective("check_equal"):
        of_ranks, sums = zip(*comm.control.exchange((kinds, checksums)), strict=True)
    for rank, theirs in enumerate(of_ranks):
        if theirs != of_ranks[0]:
            raise DisagreementError(
                f"model must have the same parameters on every rank: rank 0 has {len(of_ranks[0])} tensors, rank"
                f" {rank} {len(theirs)}, or of other shapes, types or names"
            )
    for kind, of_tensor in zip(kinds, zip(*sums, strict=True), strict=True):
        odd = [rank for rank, checksum in enumerate(of_tensor) if checksum != of_tensor[0]]
        if odd:
            some = ", ".join(map(str, odd[:8])) + ", ..." * (len(odd) > 8)
            raise DisagreementError(
                f"{kind} is not the same on all ranks: rank{'s' * (len(odd) > 1)} {some}"
                f" differ{'s' * (len(odd) == 1)} from rank 0"
            )
