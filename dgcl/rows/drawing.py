"""Random numbers of rows: every rank draws those of all rows, as one device does, and keeps its own.

Ranks that are processes have generators in one state, which :func:`dgcl.dispatch` sets. Ranks that are threads share a
generator: for calls on rows each begins at rank 0's state. Numbers that a script draws without rows it draws once a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dgcl.nn.vertex_dropout import keep_mask, next_call, scale_of
from dgcl.rows.gathering import all_rows
from dgcl.rows.sums import fitting
from dgcl.rows.tensor import Rows, rows

_log = logging.getLogger("dgcl")

#: Numbers that a rank draws for one call of dropout; above that a hash of the row decides.
MOST_DRAWN = 10**8


_turn = threading.Lock()


def _alike(comm: Any, draw: Callable[[], Any]) -> Any:
    """What every rank draws, from a generator in the same state. Collective for ranks that are threads."""
    if comm.control.threads_of_ranks == 1:
        return draw()
    with comm.collective("random numbers"):
        state = comm.control.broadcast(torch.get_rng_state() if comm.rank == 0 else None, 0)
        with _turn:
            torch.set_rng_state(state)
            out = draw()
        comm.control.barrier()
    return out


def like(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``rand_like``, ``randn_like``, ``randint_like``."""
    own = args[0]
    every = torch.empty(own.shape, dtype=own.dtype, device=own.device)
    drawn = _alike(own._space.comm, lambda: func(every, *args[1:], **kwargs))
    out = fitting(drawn, own._space, own._axis - own.dim())
    return rows(out, own._space, own._axis)


def drawn(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """Other random functions: of all rows, of which a rank keeps its own. Collective where values matter."""
    own = args[0]
    comm = first._space.comm
    if type(own) is not Rows:
        raise ValueError(f"{name} of rows beside other tensors: give it rows first (dgcl)")
    place = own._axis - own.dim()
    if name.endswith("_"):
        every = torch.empty(own.shape, dtype=own.dtype, device=own.device)
        _alike(comm, lambda: func(every, *args[1:], **kwargs))
        own._local.copy_(fitting(every, own._space, place))
        return own
    every_args, every_kwargs = all_rows(name, args, kwargs)
    out = _alike(comm, lambda: func(*every_args, **every_kwargs))
    if isinstance(out, Tensor) and out.shape[: own._axis + 1] == own.shape[: own._axis + 1]:
        return rows(fitting(out, own._space, own._axis - out.dim()), own._space, own._axis)
    return out


def dropout(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``F.dropout``: torch's own masks up to a size, else a hash of the row's place, equal on any number of ranks."""
    named = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    own = named["input"]
    p, training = named.get("p", 0.5), named.get("training", named.get("train", True))
    if type(own) is not Rows or not training or p == 0:
        return own
    space, axis = own._space, own._axis
    comm = space.comm
    if own.numel() > MOST_DRAWN or own.device.type != "cpu":
        warn_of_hash(comm)
        local = own._local.movedim(axis, 0)
        ids = space.positions.to(local.device)
        kept = keep_mask(ids, local.shape[1:].numel(), float(p), seed=0, call=next_call(comm, p))
        local = torch.where(kept.view(local.shape), local * scale_of(p), 0.0)
        out = local.movedim(0, axis)
    else:
        every = torch.empty(own.shape, dtype=own.dtype)
        mask = _alike(comm, lambda: every.bernoulli_(1 - p)).div_(1 - p)
        out = own._local * fitting(mask, space, axis - own.dim())
    if named.get("inplace"):
        own._local = own._local.copy_(out)
        return own
    return rows(out, space, axis)


def warn_of_hash(comm: Any) -> None:
    """Say once that masks are not torch's."""
    if comm.rank == 0 and "_said_of_dropout" not in comm.__dict__:
        comm._said_of_dropout = True
        _log.info(
            "dropout depends on vertices and edges, not on torch's generator: equal on any number of ranks, and not the masks"
            " that torch draws on one device"
        )
