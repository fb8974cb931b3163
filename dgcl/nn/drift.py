"""Compares parameters over ranks while they train: a model must be the same on every rank, bit for bit.

A forgotten :func:`dgcl.nn.broadcast_parameters` shows in the first step, a forgotten
:func:`dgcl.nn.sync_gradients` in the second, in nothing but the numbers. So calls 1, 2, 4, 8, ... of a loss compare
checksums of the parameters that it depends on, and rank 0 warns once. All other calls cost one increment.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from dgcl.errors import DisagreementError, InexactWarning
from dgcl.nn.arguments import current, require_parameters
from dgcl.nn.own_rows import counts
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.tensors import beside_the_graph
from dgcl.ranks.torch_private import default_store
from dgcl.ranks.warned import warn_once
from dgcl.topology.checks import check_flag

if TYPE_CHECKING:
    from dgcl.communicator import Communicator
    from dgcl.transport.base import Transport


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
    entries = [_Entry.of(name, parameter, comm) for name, parameter in named]
    if gradients:
        entries += [
            _Entry.of(f"gradient of {name}", parameter.grad, comm)
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
    """A tensor of a model as it is reported to other ranks.

    ``of_rows``: it has a row for each owned or each local vertex, so ranks may differ in it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    of_rows: bool
    checksum: int

    @property
    def kind(self) -> tuple[object, ...]:
        return self.name, self.shape, self.dtype

    @staticmethod
    def of(name: str, value: Tensor, comm: Communicator) -> _Entry:
        rows = value.dim() > 0 and len(value) in (comm.num_owned, comm.num_local)
        return _Entry(name, tuple(value.shape), value.dtype, rows, _checksum(value))


def _checksum(value: Tensor, before: int = 0) -> int:
    # A copy: FSDP frees parameters' storages, and cannot where numpy has a view of one.
    copy = torch.clone(value.detach().cpu(), memory_format=torch.contiguous_format)
    return zlib.crc32(copy.reshape(-1).view(torch.uint8).numpy().data, before)


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


@dataclass
class _Watch:
    """What is kept for one transport, rewired or not: calls so far, parameters of the last walk, any warning.

    Attributes:
        dropped: Probabilities of calls of dropout, added up.
        differentiated: What ``torch.autograd.grad`` was called of last, through a sum over ranks and no loss.
    """

    calls: int = 0
    warned: bool = False
    dropped: float = 0.0
    differentiated: Tensor | None = None
    steps: int = 0
    left: tuple[int, int] = (0, 0)  # step and checksum that were left in the store last
    number: int = field(
        default_factory=itertools.count(1).__next__
    )  # the same in graphs that run the same program
    parameters: list[ref[Tensor]] = field(default_factory=list)


_watches: WeakKeyDictionary[Transport, _Watch] = WeakKeyDictionary()
_names = WeakTensorKeyDictionary()


def watch_of(comm: Communicator) -> _Watch:
    """What is kept for a communicator, and for those that were rewired from it."""
    return _watches.setdefault(comm.transport, _Watch())


def remember_names(model: Module) -> None:
    """Let warnings call the parameters of a model by their names, and a change of their gradients be seen."""
    for name, parameter in model.named_parameters():
        _names[parameter] = name
        if parameter.requires_grad and not is_lazy(parameter):
            parameter.register_post_accumulate_grad_hook(  # after each backward that adds to it
                lambda each: setattr(each.grad, "dgcl_added", each.grad._version)
            )


def compare_at_times(outputs: Tensor, comm: Communicator, equal: dict[str, Tensor]) -> bool:
    """Compare what ``outputs`` depend on over ranks, at calls 1, 2, 4, ... of this communicator; return whether this
    was one of them. Collective.

    Warns once, on rank 0, with :class:`dgcl.errors.InexactWarning`. Parameters with a row for each vertex of a rank
    differ as they should, and models that are not alike are left to others' messages. So is ``equal`` compared: what
    else must be the same on every rank, by name.
    """
    watch = watch_of(comm)
    watch.calls += 1
    if watch.calls & (watch.calls - 1) or comm.world_size == 1:
        return False
    if not watch.warned:
        _compare(outputs, comm, watch, equal)
    return True


_TAKEN = (
    "a loss takes the same rows of each rank, as if by ids of the whole graph: dispatch a mask in their place, or take"
    " dgcl.fetch(rows, ids)"
)
_DIFFERENTIATED = (
    "torch.autograd.grad of what every rank computes alike counts once a rank: differentiate"
    " dgcl.nn.count_once(energy), or take dgcl.nn.global_sum(x, on_every_rank=True)"
)


def _compare(outputs: Tensor, comm: Communicator, watch: _Watch, equal: dict[str, Tensor]) -> None:
    if outputs.requires_grad:
        watch.parameters = [ref(parameter) for parameter in parameters_of(outputs)]
    alive = [parameter for parameter in (each() for each in watch.parameters) if parameter is not None]
    named = [(_names.get(parameter, "a parameter"), parameter) for parameter in alive]
    equal["p of dropout"] = torch.tensor(watch.dropped, device="cpu")
    entries = [_Entry.of(*each, comm) for each in [*named, *equal.items()]]
    of, watch.differentiated = watch.differentiated, None
    own = _rows_taken(outputs, comm), 0 if of is None or not of.any() else _checksum(of)
    of_ranks, reports = zip(*comm.control.exchange((own, entries)), strict=True)
    for values, text in zip(zip(*of_ranks, strict=True), (_TAKEN, _DIFFERENTIATED), strict=True):
        if values[0] and len({*values}) == 1:
            warn_once(comm, text)
    if len({len(others) for others in reports}) > 1:
        return
    columns = [each for each in zip(*reports, strict=True) if not all(entry.of_rows for entry in each)]
    if any(entry.kind != each[0].kind for each in columns for entry in each):
        return
    difference = _first_difference([list(of_rank) for of_rank in zip(*columns, strict=True)])
    watch.warned = difference is not None
    if difference is not None:
        if watch.calls == 1:
            why = "call dgcl.nn.broadcast_parameters(model) before training"
        else:
            why = "call dgcl.nn.sync_gradients(model) between backward() and step(), or wrap it in"
            why += " DistributedDataParallel and give the loss ddp=True"
        warn_once(
            comm,
            f"{difference}, at call {watch.calls} of a loss: ranks train models of their own; {why}. What is no"
            " parameter must come of dgcl.nn.global_sum, of a pool of dgcl.nn, or from before dgcl.dispatch",
        )


def _rows_taken(outputs: Tensor, comm: Communicator) -> int:
    """A checksum of the numbers by which a loss takes some of this rank's rows; 0 where it takes none so."""
    node: Any = outputs.grad_fn
    with suppress(AttributeError, IndexError, RuntimeError):  # it does not, or after a backward
        for _ in range(4):  # steps of the loss itself
            node = node if type(node).__name__ == "IndexBackward0" else node.next_functions[0][0]
        ids, size = node._saved_indices[0], node._saved_self_sym_sizes[0]
        if ids.dtype == torch.int64 and 8 < ids.numel() < size and any(size in each for each in counts(comm)):
            return _checksum(ids)
    return 0


def compare_over_axes(parameters: Sequence[Parameter], comm: Communicator, declared: bool) -> None:
    """Compare parameters with those of graphs beside this one, in steps 1, 2, 4, ... of this communicator; warn once.

    Graphs do not wait for each other here: each leaves a checksum in the ranks' store, and looks at those that the
    others left at the time before.

    Args:
        parameters: Of the model, before a step.
        comm: The communicator.
        declared: Whether the caller names the data-parallel axis; else there is one where ranks are a mesh's dimension.
    """
    control, watch = comm.control, watch_of(comm)
    watch.steps = step = watch.steps + 1
    if step & (step - 1) or not isinstance(control, GroupControl) or not (declared or control.in_mesh):
        return
    if any(hasattr(parameter, "to_local") for parameter in parameters):  # FSDP's: each graph has other shards
        return
    import torch.distributed as dist

    store = dist.PrefixStore(f"dgcl/rank {comm.rank} of {comm.world_size}", default_store())
    others = [rank for rank in range(dist.get_world_size()) if rank not in control.global_ranks]
    for other in others:
        key = f"{watch.number}/{watch.left[0]}/{other}"
        if not watch.warned and store.check([key]) and int(store.get(key)) != watch.left[1]:
            watch.warned = True
            warnings.warn(
                f"parameters of step {watch.left[0]} are not those of rank {other}, which is in another graph: graphs"
                " train models of their own; give broadcast_parameters and sync_gradients"
                ' data_parallel=mesh["data"], or wrap the model in DistributedDataParallel over that dimension',
                InexactWarning,
                stacklevel=4,
            )
    checksum = 0
    for parameter in parameters:
        checksum = _checksum(parameter, checksum)
    watch.left = step, checksum
    store.set(f"{watch.number}/{step}/{dist.get_rank()}", str(checksum))


def parameters_of(outputs: Tensor, until: str | None = None) -> list[Parameter]:
    """The parameters that a result depends on, those that are most steps away from it first.

    ``until``: a step whose name begins like this is not looked behind.
    """
    parameters: dict[int, Parameter] = {}
    seen, waiting = set(), deque([outputs.grad_fn])
    while waiting:
        node = waiting.popleft()
        if node is None or node in seen or (until and type(node).__name__.startswith(until)):
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # of AccumulateGrad
        if isinstance(leaf, Parameter):
            parameters[id(leaf)] = leaf
        waiting.extend(following for following, _ in node.next_functions)
    return list(parameters.values())[::-1]
