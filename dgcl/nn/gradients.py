"""Sums gradients over ranks and broadcasts parameters, so that every rank holds the same model, bit for bit.

All gradients of one dtype travel in one tensor, followed by how many ranks have each: one that no rank has stays None.
They are added in rank order, 16-bit ones in float32. Along a second, data-parallel axis sums are averaged.
Called by users (``dgcl.nn``), `dgcl/distributed/distribute` and `dgcl/rows/differentiate`. Free to change while sums
have the same bits on all ranks, and models that differ between ranks are refused (`tests/dgcl/nn/test_gradients.py`;
two axes: `tests/dgcl/nn/test_two_axes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from dgcl.aggregation.sparse import sum_dtype
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
    parameters = [parameter for parameter in require_parameters(model) if parameter.requires_grad]
    for parameter in parameters:
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            along = {*mesh.mesh.flatten().tolist()}
            if axis is not None or len(along & {*getattr(comm.control, "global_ranks", ())}) > 1:
                raise ValueError(
                    "model: FSDP averages over the ranks that it shares parameters out to, which must be ranks with"
                    ' other samples: fully_shard(model, mesh=mesh["data"]), and leave data_parallel out here'
                )

    def total(flat: Tensor) -> Tensor:
        summed = comm.all_reduce_sum(flat.detach(), "sync_gradients")
        return summed if axis is None else all_reduce_sum(axis, summed, "sync_gradients") / axis.world_size

    try:
        for leaf, summed in summed_gradients(parameters, total):
            if summed is not None:
                if leaf.grad is None:
                    leaf.grad = torch.zeros_like(leaf)
                shard_of(leaf.grad.detach()).copy_(summed)
    except TensorsDisagreeError as error:
        numbers = sum(each.numel() for each in parameters)
        raise ValueError(
            "model must have the same parameters in the same order on every rank: the gradients of rank"
            f" {comm.rank} are {numbers} numbers in {len(parameters)} tensors ({error})"
        ) from None


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


def summed_gradients(
    leaves: Iterable[Tensor], total: Callable[[Tensor], Tensor]
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Each leaf with the sum over ranks of its gradients, of this rank's shard; None where no rank has one. Collective.

    All of one type travel at once, followed by how many ranks have each. 16-bit gradients are summed in float32: the
    sum is then rounded once, not once per rank.

    Args:
        leaves: The same on every rank, in the same order.
        total: The sum over ranks of ``(n,)`` tensors.

    Raises:
        ValueError: A gradient is sparse.
    """
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for leaf in leaves:
        if leaf.grad is not None and leaf.grad.layout != torch.strided:
            raise ValueError(
                f"model has a gradient of shape {tuple(leaf.shape)} that is {leaf.grad.layout}; sums over ranks are"
                " dense, so make the layer with sparse=False"
            )
        groups.setdefault((leaf.dtype, leaf.device), []).append(leaf)
    for (dtype, _), members in groups.items():
        wide = sum_dtype(dtype)
        shares = [shard_of(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad) for leaf in members]
        present = shares[0].new_ones(len(members), dtype=wide)
        absent = [place for place, leaf in enumerate(members) if leaf.grad is None]
        if absent:  # else no host waits for its device
            present[absent] = 0
        flat = torch.cat([*(share.reshape(-1).to(wide) for share in shares), present])
        *sums, holders = total(flat).split([*(share.numel() for share in shares), len(members)])
        held_by = holders.tolist() if absent else [1] * len(members)
        for leaf, share, summed, held in zip(members, shares, sums, held_by, strict=True):
            yield leaf, summed.view_as(share).to(dtype) if held else None


def shard_of(tensor: Any) -> Tensor:
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
