"""Sums over ranks and gathers of rows, each differentiable; and the state that one rank's tensors share.

The derivative of a collective is its transpose: of a sum over ranks a sum over ranks, of a gather this rank's rows of
such a sum. So a backward is collective, too, and must begin in ``differentiate``. Gathered rows keep their bits.
:func:`fitting` gives this rank's part of any tensor for a space of rows: rules begin with it.
Called by `apply_rule`, `differentiate`, `rowwise`, `dgcl/distributed/adapters`, `dgcl/distributed/rank_graph` and
others. Free to change while values and gradients are those of one device (`tests/dgcl/rows/test_sweep.py`), also of
second order ("forces", `tests/dgcl/rows/test_programs.py`).
"""

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.rows.space import Space
from dgcl.rows.tensor import PAIRS, Replicated, Rows, follow, plain, rows


class State:
    """What the tensors of the communicators of one rank share.

    Attributes:
        backwards: How many have ended.
        depth: Backwards of ours that run; autograd may run them in threads of its own.
        in_layer: A layer of PyG runs as it is, and drops by itself.
        met: By id the leaves that the outermost one has met, with their gradients of before.
        models: Those that were distributed.
        shards: Their parameters of which FSDP gives each rank a part.
        gather_limit: Elements up to which all rows are gathered.
        sites: Elements that each function has gathered, by its name; what was said once.
        learnt: By a way of calling a function the dimensions at which its results have rows; None: not row by row.
    """

    def __init__(self, gather_limit: int = 10**7) -> None:
        self.depth, self.backwards, self.gather_limit = 0, 0, gather_limit
        self.in_layer = False
        self.met: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.sites: dict[Any, int] = {}
        self.learnt: OrderedDict[Any, Any] = OrderedDict()
        # A dictionary, and no set: all ranks go through the models in one order.
        self.models: WeakKeyDictionary[torch.nn.Module, None] = WeakKeyDictionary()
        self.shards: list[Tensor] = []


def state_of(comm: Communicator) -> State:
    """What the tensors of this rank share."""
    return comm.control.__dict__.setdefault("one_device", State())  # type: ignore[no-any-return]


class _Sum(torch.autograd.Function):
    """The sum over ranks of shares; its transpose is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, comm: Communicator, name: str) -> Tensor:
        ctx.comm, ctx.name = comm, name
        return _no_view(comm.all_reduce_sum(share.detach(), name))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        _require_backward(ctx.comm)
        return _Sum.apply(grad, ctx.comm, f"{ctx.name} (backward)"), None, None


def _require_backward(comm: Communicator) -> None:
    if not state_of(comm).depth:
        raise RuntimeError(
            "a gradient of dgcl's rows must begin at loss.backward(), torch.autograd.backward([loss]) of what was"
            " computed of rows, or torch.autograd.grad(loss, ...): another way calls torch's engine past the ranks"
        )


def _no_view(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of its own, which may be changed in place after a function gave it."""
    if not tensor._is_view():
        return tensor
    out = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return out.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def total(share: Tensor, comm: Communicator, name: str) -> Tensor:
    """The sum over ranks, plain; bools are counted. Collective."""
    share = plain(share)
    if share.dtype == torch.bool:
        share = share.long()
    if share.requires_grad and torch.is_grad_enabled():
        return _Sum.apply(share, comm, name)  # type: ignore[no-any-return]
    return comm.all_reduce_sum(share.detach(), name)  # type: ignore[no-any-return]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Gather(torch.autograd.Function):
    """All rows on every rank, bit for bit; its transpose takes a rank's rows of the sum of what came back."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, space: Space) -> Tensor:
        ctx.space = space
        if local.is_complex():
            local = torch.view_as_real(local.resolve_conj())
            return _no_view(torch.view_as_complex(_all_rows(local, space)))
        return _no_view(_all_rows(local, space))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        space = ctx.space
        _require_backward(space.comm)
        return _Sum.apply(grad, space.comm, "gather (backward)").index_select(0, space.positions), None


def _all_rows(local: Tensor, space: Space) -> Tensor:
    bits = local.detach().contiguous().view(_BITS[local.element_size()])
    whole = bits.new_zeros(space.size, *local.shape[1:])
    whole.index_copy_(0, space.positions.to(bits.device), bits)
    return space.comm.all_reduce_sum(whole, "gather of rows").view(local.dtype)  # type: ignore[no-any-return]


def gather(value: Rows) -> Tensor:
    """All rows of one device, plain, on every rank. Collective."""
    value = as_ids(value)
    local = value._local.movedim(value._axis, 0) if value._axis else value._local
    out = _Gather.apply(local, value._space)
    return out.movedim(0, value._axis) if value._axis else out  # type: ignore[no-any-return]


def as_ids(ends: Any) -> Any:
    """Numbers of ends of edges as ids of vertices, which they are on one device; all else as it is."""
    if type(ends) is not Rows or ends._ends is None:
        return ends
    space, local = ends._space, ends._local
    numbers = space.ends
    if numbers is None or numbers.exchange is None:
        return rows(local, space, ends._axis)
    of = {end: ids.to(local.device) for end, ids in numbers.ids.items()}
    if ends._ends in PAIRS:
        out = torch.stack([of[end][local[at].long()] for at, end in enumerate(PAIRS[ends._ends])])
    else:
        out = of[ends._ends or ""][local.long()]
    return rows(out.to(local.dtype), space, ends._axis)


def whole(value: Any) -> Any:
    """A value as one device has it, plain, on every rank. Collective for rows."""
    return gather(value) if type(value) is Rows else plain(value)


def fitting(value: Any, space: Space, place: int) -> Any:
    """What a value has for rows that a space shares out at dimension ``place``, counted from the last: -1, -2, ...

    Args:
        value: Rows of the same space there are this rank's; a tensor of all rows gives this rank's; one that is
            broadcast there, and what is no tensor, is as it is.
        space: The rows.
        place: The dimension.

    Raises:
        RuntimeError: As torch's where sizes do not fit.
    """
    if not isinstance(value, Tensor):
        return value
    if type(value) is Rows:
        if value._axis - value.dim() == place:
            if value._space.same(space):
                return value._local
            if value.shape[place] == space.size != 1:  # each row to the rank that stores its place in space
                local = value._local.movedim(value._axis, 0)
                return value._space.fetch(local, space.positions).movedim(0, value._axis)
        value = gather(value)
    number = value.shape[place] if value.dim() >= -place else 1
    if number == 1:
        return plain(value)
    if number != space.size:
        raise RuntimeError(
            f"The size of tensor a ({space.size}) must match the size of tensor b ({number}) at non-singleton dimension"
            f" {value.dim() + place} (rows of dgcl)"
        )
    return plain(value).index_select(value.dim() + place, space.positions.to(value.device))


def write(own: Tensor, result: Tensor) -> Tensor:
    """Write a result into a tensor, which stays the same object; a plain one is replicated from now on. Collective."""
    if type(own) is Rows:
        own._local.copy_(fitting(result, own._space, own._axis - own.dim()))
        return follow(own)
    own.copy_(whole(result))
    if type(own) is Tensor:
        own.__class__ = Replicated
    return own
