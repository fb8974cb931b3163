"""The collectives as autograd and ``torch.compile`` see them: expand, fold (its adjoint), and sums over ranks.

``dgcl::expand`` and ``dgcl::fold`` take rows, the number of a communicator and the number of one of its exchanges;
``dgcl::sum_over_ranks``, whose backward is itself, is what statistics, losses and metrics are made of. :func:`expand`,
:func:`fold` and :func:`sum_over_ranks` call autograd, or the transport, where nobody else needs to see the call.
Called by `pending` and `dgcl/communicator`. Free to change while gradients are those of finite differences, expand and
fold are adjoint, and the compiler drops, merges or moves no call (`tests/dgcl/autograd/test_operators.py`; under
``torch.func``, and whole models: `tests/dgcl/nn/test_compile.py`).
"""

import itertools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dgcl.ranks.control import Control
from dgcl.ranks.rank_sums import all_reduce_sum
from dgcl.ranks.tensors import mark_of, refuse_vmap
from dgcl.ranks.torch_private import (
    below_autograd,
    functorch_level,
    keep_order,
    num_dispatch_modes,
    num_function_modes,
)
from dgcl.transport.base import Transport
from dgcl.transport.rounding import WIRED, Rounding
from dgcl.transport.row_checks import check_summable_dtype


# The operators are functional to autograd, and *effectful*, in order, to the compiler. Peers rely on every call being
# made, exactly once and in program order: none may be dropped, merged or moved past another, even if its result is
# unused on this rank. Torch's dispatcher takes about 50 us for a custom operator, several times as long as a small
# exchange, and autograd 20: so both are left out where they can be.
class Exchanging(Protocol):
    """The interface of a communicator that the operators need.

    Attributes:
        transport: Moves its rows.
        rounding: Moves those of calls whose exchange asks for a wire type.
        control: Adds up small tensors.
    """

    transport: Transport
    rounding: Rounding
    control: Control

    def collective(self, name: str) -> AbstractContextManager[None]:
        """As :meth:`dgcl.communicator.Communicator.collective`."""

    def rows_of(self, exchange: int) -> tuple[int, int]:
        """(num_owned, num_local) of the exchange with this number."""


Verb = Callable[..., Tensor]
""":func:`expand`, :func:`fold` or :func:`sum_over_ranks`."""

#: Communicators by number; a graph of operators can hold a number, but no communicator.
_communicators: weakref.WeakValueDictionary[int, Exchanging] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)  # ranks may be threads: taking a number is one step


def register_communicator(comm: Exchanging) -> int:
    """Assign a number to a communicator and return it."""
    number = next(_numbers)
    _communicators[number] = comm
    return number


def _find(number: int) -> Exchanging:
    # A compiler that has seen two communicators makes the number a symbol; int() ties the code to this one.
    comm = _communicators.get(int(number))
    if comm is None:
        raise ValueError(
            f"comm: communicator {number} no longer exists; keep a reference to it until the last backward "
            f"has run"
        )
    return comm


def expand_now(comm: Exchanging, rows: Tensor, exchange: int) -> Tensor:
    """Owned and halo rows, without autograd."""
    return (comm.transport if exchange < WIRED else comm.rounding).expand(rows, exchange)


def fold_now(comm: Exchanging, rows: Tensor, exchange: int) -> Tensor:
    """The sums over all ranks, without autograd.

    Raises:
        TypeError: Rows of this type cannot be summed.
    """
    check_summable_dtype(rows.dtype)
    transport = comm.transport if exchange < WIRED else comm.rounding
    if rows.dtype.is_complex:  # the sum of complex numbers is that of their parts
        return torch.view_as_complex(transport.fold(torch.view_as_real(rows), exchange))
    return transport.fold(rows, exchange)


_VERBS = "expand", "fold", "sum_over_ranks"
# Schemas are written out: torch 2.4 cannot read them from annotations that are strings.
_ROWS = "(Tensor rows, int comm, int exchange=0) -> Tensor"


@torch.library.custom_op("dgcl::expand", mutates_args=(), schema=_ROWS, device_types=("cpu", "cuda"))
def expand_operator(rows: Tensor, comm: int, exchange: int = 0) -> Tensor:
    """``(num_owned, *F)`` owned rows to ``(num_owned + num_halo, *F)`` owned and halo rows."""
    return expand_now(_find(comm), rows, exchange)


@torch.library.custom_op("dgcl::fold", mutates_args=(), schema=_ROWS, device_types=("cpu", "cuda"))
def fold_operator(rows: Tensor, comm: int, exchange: int = 0) -> Tensor:
    """``(num_owned + num_halo, *F)`` rows to the ``(num_owned, *F)`` sums over all ranks that hold them."""
    return fold_now(_find(comm), rows, exchange)


@torch.library.custom_op(
    "dgcl::sum_over_ranks", mutates_args=(), schema="(Tensor tensor, int comm, str name) -> Tensor"
)
def sum_operator(tensor: Tensor, comm: int, name: str) -> Tensor:
    """The sum over ranks of tensors of one shape; messages call it ``name``."""
    return _sum(_find(comm), tensor, name)


def _sum(comm: Exchanging, tensor: Tensor, name: str) -> Tensor:
    with comm.collective(name):
        return all_reduce_sum(comm.control, tensor, name)


def _meet_compiler() -> None:
    """Called where a compiler traces; its parts are loaded by then."""
    keep_order(getattr(torch.ops.dgcl, verb).default for verb in _VERBS)


@sum_operator.register_fake
def _(tensor: Tensor, comm: int, name: str) -> Tensor:
    _meet_compiler()
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@expand_operator.register_fake
def _(rows: Tensor, comm: int, exchange: int = 0) -> Tensor:
    _meet_compiler()
    return rows.new_empty((_find(comm).rows_of(exchange)[1], *rows.shape[1:]))


@fold_operator.register_fake
def _(rows: Tensor, comm: int, exchange: int = 0) -> Tensor:
    _meet_compiler()
    return rows.new_empty((_find(comm).rows_of(exchange)[0], *rows.shape[1:]))


def _remember(ctx: Any, inputs: tuple[Tensor, int, Any], output: Tensor) -> None:
    ctx.number, ctx.which = inputs[1:]
    ctx.comm = _communicators.get(ctx.number)  # keeps it alive as long as the graph, whose backward needs it


def _adjoint_sum(grad: Tensor, comm: Exchanging, number: int, name: str) -> Tensor:
    return sum_over_ranks(grad, comm, number, name.removesuffix(" (backward)") + " (backward)")


sum_operator.register_autograd(
    lambda ctx, grad: (_adjoint_sum(grad, _find(ctx.number), ctx.number, ctx.which), None, None),
    setup_context=_remember,
)
expand_operator.register_autograd(
    lambda ctx, grad: (fold(grad, _find(ctx.number), ctx.number, ctx.which), None, None),
    setup_context=_remember,
)
fold_operator.register_autograd(
    lambda ctx, grad: (expand(grad, _find(ctx.number), ctx.number, ctx.which), None, None),
    setup_context=_remember,
)


class _Direct(torch.autograd.Function):
    """Expand or fold without torch's dispatcher; the adjoint is the other of the two."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, now: Verb, adjoint: Verb, *call: Any) -> Tensor:
        comm, _, exchange = call
        ctx.adjoint, ctx.call = adjoint, call
        ctx.save_for_backward(mark_of(comm))
        with below_autograd():
            return now(comm, rows, exchange)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.adjoint(grad, *ctx.call), None, None, None, None, None


class _Transformed(torch.autograd.Function):
    """One of the verbs under ``torch.func.grad``, which wants contexts that are set up apart from the forward."""

    vmap = staticmethod(refuse_vmap)

    @staticmethod
    def forward(rows: Tensor, verb: Verb, comm: Exchanging, number: int, which: Any) -> Tensor:
        return verb(rows, comm, number, which)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Verb, Exchanging, int, Any], output: Tensor) -> None:
        _, ctx.verb, ctx.comm, ctx.number, ctx.which = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        adjoints: dict[Verb, Verb] = {expand: fold, fold: expand, sum_over_ranks: _adjoint_sum}
        return adjoints[ctx.verb](grad, ctx.comm, ctx.number, ctx.which), None, None, None, None


# What Function.apply does besides is for functorch, of which nothing is active where this is called.
_apply = super(torch.autograd.Function, _Direct).apply


def expand(rows: Tensor, comm: Exchanging, number: int, exchange: int = 0) -> Tensor:
    """``(num_owned, *F)`` owned rows to ``(num_owned + num_halo, *F)`` owned and halo rows, differentiably.

    ``number`` is what :func:`register_communicator` returned for ``comm``."""
    if not _unwatched(rows):
        return _watched(expand, expand_operator, rows, comm, number, exchange)
    # In forward mode autograd reports that this is not supported.
    if (rows.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        return _apply(rows, expand_now, fold, comm, number, exchange)
    return expand_now(comm, rows, exchange)


def fold(rows: Tensor, comm: Exchanging, number: int, exchange: int = 0) -> Tensor:
    """``(num_owned + num_halo, *F)`` rows to the ``(num_owned, *F)`` sums over all ranks, differentiably."""
    if not _unwatched(rows):
        return _watched(fold, fold_operator, rows, comm, number, exchange)
    if (rows.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        return _apply(rows, fold_now, expand, comm, number, exchange)
    return fold_now(comm, rows, exchange)


def sum_over_ranks(tensor: Tensor, comm: Exchanging, number: int, name: str) -> Tensor:
    """The sum over ranks of tensors of one shape, differentiably; messages call it ``name``."""
    if not _unwatched(tensor):
        return _watched(sum_over_ranks, sum_operator, tensor, comm, number, name)
    if tensor.requires_grad and torch.is_grad_enabled():
        return sum_operator(tensor, number, name)
    return _sum(comm, tensor, name)


def _unwatched(rows: Tensor) -> bool:
    """Whether only autograd needs to see the call."""
    return (
        not torch.compiler.is_compiling()
        and functorch_level() is None
        and type(rows) in (Tensor, torch.nn.Parameter)
        and not (rows.is_conj() or rows.is_neg())  # their memory does not hold their values
        and num_dispatch_modes() == 0
        and num_function_modes() == 0
    )


def _watched(
    verb: Verb, operator: Callable[..., Tensor], rows: Tensor, comm: Exchanging, number: int, which: Any
) -> Tensor:
    """The call of a verb that something besides autograd needs to see."""
    if torch.compiler.is_compiling():
        return operator(rows, number, which)
    # torch.func.jvp would silently take the tangent of an operator without one for zero.
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(rows).tangent is not None:
        raise NotImplementedError(
            "exchanges of rows have no derivative in forward mode (torch.func.jvp); differentiate backwards, with"
            " torch.autograd.grad"
        )
    if functorch_level() is not None:
        return _Transformed.apply(rows, verb, comm, number, which)
    return operator(rows, number, which)


def _make_effectful() -> None:
    try:
        from torch.library import EffectType, _register_effectful_op
    except ImportError:  # an older torch, whose compiler may drop a call whose result nobody uses
        return

    for verb in _VERBS:
        _register_effectful_op(f"dgcl::{verb}", EffectType.ORDERED)


_make_effectful()
