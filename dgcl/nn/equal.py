"""Compares parameters over ranks, on demand: a model must be the same on every rank, bit for bit."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from dgcl.errors import DisagreementError
from dgcl.nn.arguments import current, require_parameters
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
        named = [
            (f"parameter {place}", parameter) for place, parameter in enumerate(require_parameters(model))
        ]
    entries = [_Entry.of(name, parameter) for name, parameter in named]
    if gradients:
        entries += [
            _Entry.of(f"gradient of {name}", parameter.grad)
            for name, parameter in named
            if parameter.grad is not None
        ]
    with comm.collective("check_equal"):
        reports = comm.control.exchange(entries)
    for rank, others in enumerate(reports):
        if [entry.kind for entry in others] != [entry.kind for entry in reports[0]]:
            raise DisagreementError(
                f"model must have the same parameters on every rank: rank 0 has {len(reports[0])} tensors, rank"
                f" {rank} {len(others)}, or of other shapes, types or names"
            )
    difference = _first_difference(reports)
    if difference is not None:
        raise DisagreementError(difference)


@dataclass(frozen=True)
class _Entry:
    """A tensor of a model as it is reported to other ranks."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    checksum: int

    @property
    def kind(self) -> tuple[object, ...]:
        return self.name, self.shape, self.dtype

    @staticmethod
    def of(name: str, value: Tensor) -> _Entry:
        return _Entry(name, tuple(value.shape), value.dtype, _checksum(value))


def _checksum(value: Tensor) -> int:
    # A copy: FSDP frees parameters' storages, and cannot where numpy has a view of one.
    copy = torch.clone(value.detach().cpu(), memory_format=torch.contiguous_format)
    return zlib.crc32(copy.reshape(-1).view(torch.uint8).numpy().data)


def _first_difference(reports: list[list[_Entry]]) -> str | None:
    """Which tensor differs from rank 0's on which ranks; None if none does."""
    for entries in zip(*reports, strict=True):
        odd = [rank for rank, entry in enumerate(entries) if entry.checksum != entries[0].checksum]
        if odd:
            some = ", ".join(map(str, odd[:8])) + (", ..." if len(odd) > 8 else "")
            return (
                f"{entries[0].name} of shape {entries[0].shape} is not the same on all ranks: rank"
                f"{'s' * (len(odd) > 1)} {some} differ{'s' * (len(odd) == 1)} from rank 0"
            )
    return None
