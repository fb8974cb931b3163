"""Keeps the model the same on every rank: broadcasts parameters at the start, and sums gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from dgcl.errors import DisagreementError
from dgcl.nn.arguments import current, require_integers, require_module, require_parameters
from dgcl.nn.drift import remember_names
from dgcl.nn.inexact import OnInexact, report_inexact

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

__all__ = ["broadcast_parameters", "sync_gradients"]


def sync_gradients(model: Module | Iterable[Parameter], *, comm: Communicator | None = None) -> None:
    """Replace every parameter's gradient by its sum over ranks: call it between ``backward`` and ``step``.

    With the losses of :mod:`dgcl.nn` the sums are the gradients of one device. They are added in rank order
    and have the same bits on every rank, so the ranks' parameters stay bitwise equal. Collective; works for
    ranks that are threads, where ``DistributedDataParallel`` does not. Of W bytes of gradients a rank receives
    2 (P - 1) / P W, as in an all-reduce (:mod:`dgcl.ranks.sums`).

    A parameter that has a gradient on some ranks gets it on all; one that has none on any rank keeps None,
    which optimizers tell from zero.

    Args:
        model: the model, or its parameters; the same ones in the same order on every rank.
        comm: the communicator; default the current one.

    Raises:
        ValueError: the ranks' models have other shapes, or a gradient is sparse.
        TypeError: ``model`` is something else.
    """
    comm = current(comm)
    buckets: dict[tuple[torch.dtype, torch.device], list[Parameter]] = {}
    for parameter in require_parameters(model):
        if parameter.requires_grad:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise ValueError(
                    f"model has a gradient of shape {tuple(parameter.shape)} that is {parameter.grad.layout};"
                    " sums over ranks are dense, so make the layer with sparse=False"
                )
            buckets.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for (dtype, _), bucket in buckets.items():
        # 16-bit gradients are summed in float32: the sum is then rounded once, not once per rank.
        _sum_bucket(bucket, torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype, comm)


def _sum_bucket(parameters: list[Parameter], dtype: torch.dtype, comm: Communicator) -> None:
    """One sum for all gradients, followed by how many ranks have each."""
    gradients = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in parameters]
    present = parameters[0].new_tensor([p.grad is not None for p in parameters], dtype=dtype)
    flat = torch.cat([*(g.detach().reshape(-1).to(dtype) for g in gradients), present])
    try:
        total = comm.all_reduce_sum(flat, "sync_gradients")
    except DisagreementError as error:
        raise ValueError(
            "model must have the same parameters in the same order on every rank: the gradients of rank"
            f" {comm.rank} are {flat.numel() - len(parameters)} numbers in {len(parameters)} tensors ({error})"
        ) from None
    *sums, holders = total.split([*(p.numel() for p in parameters), len(parameters)])
    for parameter, summed, held in zip(parameters, sums, (holders > 0).tolist(), strict=True):
        if parameter.grad is not None:
            parameter.grad.detach().copy_(summed.view_as(parameter))
        elif held:
            parameter.grad = summed.view_as(parameter).to(parameter.dtype, copy=True)


def broadcast_parameters(
    model: Module, *, src: int = 0, comm: Communicator | None = None, inexact: OnInexact = "warn"
) -> None:
    """Give every rank the parameters and buffers of rank ``src``: call it once, before training. Collective.

    Looks the model through first (:func:`dgcl.check_model`).

    Args:
        model: the same architecture on every rank.
        src: the rank whose values all ranks take.
        comm: the communicator; default the current one.
        inexact: what to do about modules that give other numbers than on one device: "warn" (once, on rank 0),
            "raise", or "ignore".

    Raises:
        ValueError: a rank's model has other names or shapes than that of rank ``src``, or is not exact.
    """
    comm = current(comm)
    require_module(model)
    require_integers(src=src)
    if not 0 <= src < comm.world_size:
        raise ValueError(f"src must be a rank in [0, {comm.world_size}) (got {src})")
    report_inexact(model, comm, inexact)
    remember_names(model)
    own = dict([*model.named_parameters(), *model.named_buffers()])
    # Copies: ranks that are threads would otherwise read what rank src already trains.
    copies = {name: value.detach().cpu().clone() for name, value in own.items()} if comm.rank == src else None
    with comm.control.collective("broadcast_parameters"):
        values: dict[str, Tensor] = comm.control.broadcast(copies, src)
    if own.keys() != values.keys():
        odd = sorted(own.keys() ^ values.keys())
        raise ValueError(
            f"model must be the same on every rank: {odd[0]!r} is on rank {src} or {comm.rank} alone"
        )
    with torch.no_grad():
        for name, value in own.items():
            if value.shape != values[name].shape:
                raise ValueError(
                    f"model must be the same on every rank: {name} is {tuple(value.shape)} on rank"
                    f" {comm.rank} and {tuple(values[name].shape)} on rank {src}"
                )
            value.copy_(values[name])
