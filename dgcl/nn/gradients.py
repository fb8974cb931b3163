"""Keeps the model the same on every rank: broadcasts parameters at the start, and sums gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from dgcl.nn.inexact import OnInexact, report_inexact
from dgcl.nn.layer_arguments import current, require_module, require_parameters
from dgcl.ranks.control import Control
from dgcl.ranks.gloo_groups import as_group
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.rank_sums import TensorsDisagreeError, all_reduce_sum
from dgcl.ranks.tensors import beside_the_graph
from dgcl.topology.checks import check_index

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from dgcl.communicator import Communicator


@beside_the_graph
def sync_gradients(
    model: Module | Iterable[Parameter],
    *,
    comm: Communicator | None = None,
    data_parallel: ProcessGroup | DeviceMesh | None = None,
) -> None:
    """Replace every parameter's gradient by its sum over ranks: call it between ``backward`` and ``step``.

    With the losses of :mod:`dgcl.nn` the sums are the gradients of one device. They are added in rank order
    and have the same bits on every rank, so the ranks' parameters stay bitwise equal. Collective; works for
    ranks that are threads, where ``DistributedDataParallel`` does not. Of W bytes of gradients a rank receives
    2 (P - 1) / P W, as in an all-reduce (:mod:`dgcl.ranks.rank_sums`).

    A parameter that has a gradient on some ranks gets it on all; one that has none on any rank keeps None,
    which optimizers tell from zero.

        >>> mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "graph"))
        >>> dgcl.init(mesh["graph"])
        >>> dgcl.nn.sync_gradients(model, data_parallel=mesh["data"])

    Args:
        model: the model, or its parameters; the same ones in the same order on every rank.
        comm: the communicator; default the current one.
        data_parallel: the ranks that train the same model on other samples: a dimension of a DeviceMesh, or a group.
            The sums are averaged over them, in rank order, too. Leave it out where DDP or FSDP does this.

    Raises:
        ValueError: the ranks' models have other shapes, a gradient is sparse, or FSDP shares parameters out along the
            graph's axis.
        TypeError: ``model`` is something else.
    """
    comm = current(comm)
    if "view" in vars(comm) and data_parallel is None:
        raise ValueError(
            "sync_gradients is not needed with dgcl.dispatch: backward gives the gradients of one device"
        )
    axis = _axis(comm, data_parallel)
    buckets: dict[tuple[torch.dtype, torch.device], list[Parameter]] = {}
    parameters = require_parameters(model)
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise ValueError(
                    f"model has a gradient of shape {tuple(parameter.shape)} that is {parameter.grad.layout};"
                    " sums over ranks are dense, so make the layer with sparse=False"
                )
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None:
                along = {*mesh.mesh.flatten().tolist()}
                if axis is not None or len(along & {*getattr(comm.control, "global_ranks", ())}) > 1:
                    raise ValueError(
                        "model: FSDP averages over the ranks that it shares parameters out to, which must be ranks with"
                        ' other samples: fully_shard(model, mesh=mesh["data"]), and leave data_parallel out here'
                    )
            buckets.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for (dtype, _), bucket in buckets.items():
        # 16-bit gradients are summed in float32: the sum is then rounded once, not once per rank.
        _sum_bucket(bucket, torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype, comm, axis)


def _axis(comm: Communicator, group: ProcessGroup | DeviceMesh | None) -> GroupControl | None:
    """The control plane of the data-parallel axis, where there is one."""
    if group is None:
        return None
    ranks = as_group(group, "data_parallel")
    if not isinstance(comm.control, GroupControl) or isinstance(ranks, int):
        raise ValueError(
            "data_parallel must be a group of processes that this one belongs to; ranks of dgcl.launch have none"
        )
    axis = comm.control.axis(ranks)
    if len({*axis.global_ranks} & {*comm.control.global_ranks}) > 1:
        raise ValueError(
            f"data_parallel must be ranks with other samples, one of each graph (got {axis.global_ranks}, and the graph"
            f" is that of ranks {comm.control.global_ranks}); leave it out where there is one graph"
        )
    return axis


def _sum_bucket(
    parameters: list[Parameter], dtype: torch.dtype, comm: Communicator, axis: GroupControl | None
) -> None:
    """One sum for all gradients, followed by how many ranks have each."""
    gradients = [_local(torch.zeros_like(p) if p.grad is None else p.grad).detach() for p in parameters]
    present = gradients[0].new_ones(len(parameters), dtype=dtype)
    absent = [place for place, parameter in enumerate(parameters) if parameter.grad is None]
    if absent:  # else no host waits for its device
        present[absent] = 0
    flat = torch.cat([*(g.reshape(-1).to(dtype) for g in gradients), present])
    try:
        total = comm.all_reduce_sum(flat, "sync_gradients")
        if axis is not None:
            total = all_reduce_sum(axis, total, "sync_gradients") / axis.world_size
    except TensorsDisagreeError as error:
        raise ValueError(
            "model must have the same parameters in the same order on every rank: the gradients of rank"
            f" {comm.rank} are {flat.numel() - len(parameters)} numbers in {len(parameters)} tensors ({error})"
        ) from None
    *sums, holders = total.split([*(g.numel() for g in gradients), len(parameters)])
    held_by = holders.tolist() if absent else [1] * len(parameters)
    for parameter, summed, held in zip(parameters, sums, held_by, strict=True):
        if held and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            gradient = _local(parameter.grad.detach())
            gradient.copy_(summed.view_as(gradient))


def _local(tensor: Any) -> Tensor:
    """What this rank has of a tensor: its shard, where FSDP shares it out along the other axis."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@beside_the_graph
def broadcast_parameters(
    model: Module,
    *,
    src: int = 0,
    comm: Communicator | None = None,
    data_parallel: ProcessGroup | DeviceMesh | None = None,
    inexact: OnInexact = "warn",
) -> None:
    """Give every rank the parameters and buffers of rank ``src``: call it once, before training. Collective.

    Looks the model through first (:func:`dgcl.check_model`).

    Args:
        model: the same architecture on every rank.
        src: the rank whose values all ranks take.
        comm: the communicator; default the current one.
        data_parallel: as of :func:`sync_gradients`; all take what rank ``src`` of the first graph has.
        inexact: what to do about modules that give other numbers than on one device: "warn" (once, on rank 0),
            "raise", or "ignore".

    Raises:
        ValueError: a rank's model has other names or shapes than that of rank ``src``, or is not exact.
    """
    comm = current(comm)
    axis = _axis(comm, data_parallel)
    require_module(model)
    check_index(src, "src", most=comm.world_size - 1)
    report_inexact(model, comm, inexact)
    with comm.collective("broadcast_parameters"):
        _take_from(model, comm.control, src)
    if axis is not None:
        _take_from(model, axis, 0)


def _take_from(model: Module, control: Control, src: int) -> None:
    named = [*model.named_parameters(), *model.named_buffers()]
    own, rank = {name: value for name, value in named if not is_lazy(value)}, control.rank
    # Copies: ranks that are threads would otherwise read what rank src already trains.
    copies = {name: value.detach().cpu().clone() for name, value in own.items()} if rank == src else None
    with control.collective("broadcast_parameters"):
        values: dict[str, Tensor] = control.broadcast(copies, src)
    if own.keys() != values.keys():
        odd = sorted(own.keys() ^ values.keys())
        raise ValueError(f"model must be the same on every rank: {odd[0]!r} is on rank {src} or {rank} alone")
    with torch.no_grad():
        for name, value in own.items():
            if value.shape != values[name].shape:
                raise ValueError(
                    f"model must be the same on every rank: {name} is {tuple(value.shape)} on rank"
                    f" {rank} and {tuple(values[name].shape)} on rank {src}"
                )
            value.copy_(values[name])
