"""Random functions of tensors whose rows are divided over ranks, with the numbers of one device.

Every rank draws the numbers of all rows and keeps its own. Ranks that are processes have generators in one state, which
:func:`dgcl.dispatch` sets. Ranks that are threads share a generator: for calls on rows each begins at rank 0's state.
Numbers that a script draws without rows it draws once a thread. Dropout of more than ``MOST_DRAWN`` elements, on a GPU,
or inside layers of PyG is by a hash of the row's place.
Called by `rule_table`. Free to change while scripts that draw print the numbers of one device
(`tests/dgcl/rows/test_programs.py`, "on_processes"; slow), and dropout in layers is the same for any number of ranks
(`tests/dgcl/rows/test_attention.py`).
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from dgcl.communicator import Communicator
from dgcl.nn.vertex_dropout import keep_mask, next_call, scale_of
from dgcl.rows.gathering import all_rows
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import fitting, state_of
from dgcl.rows.tensor import Rows, replicated, rows

_log = logging.getLogger("dgcl")

#: Numbers that a rank draws for one call of dropout; above that a hash of the row decides.
MOST_DRAWN = 10**8
_turn = threading.Lock()


def _drawn_together(comm: Communicator, draw: Callable[[], Any]) -> Any:
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


def drawn(call: Call) -> Any:
    """A random function: of all rows, of which a rank keeps its own. Collective where values matter."""
    own, args, kwargs = call.args[0], call.args[1:], call.kwargs
    space = call.first._space
    if type(own) is Rows and (call.writes or call.name.endswith("_like")):  # values do not matter
        every = torch.empty(own.shape, dtype=own.dtype, device=own.device)
        out = _drawn_together(space.comm, lambda: call.func(every, *args, **kwargs))
        local = fitting(out, space, own._axis - own.dim())
        if call.writes:
            own._local.copy_(local)
            return own
        return rows(local.detach().requires_grad_(out.requires_grad), space, own._axis)
    args, kwargs = all_rows(call)
    return replicated(_drawn_together(space.comm, lambda: call.func(*args, **kwargs)))


def dropout(call: Call) -> Any:
    """``F.dropout``: torch's own masks up to a size; above it, and inside layers of PyG, a hash of the row's place."""
    own, p, training, in_place = call.bound(
        "input p training inplace", p=0.5, training=call.kwargs.get("train", True)
    )
    if not training or p == 0:
        return own
    space, axis = own._space, own._axis
    if p == 1:
        out = own._local * 0.0
    elif state_of(space.comm).in_layer or own.numel() > MOST_DRAWN or own.device.type != "cpu":
        _say_hash(space.comm)
        local = own._local.movedim(axis, 0)
        number = next_call(space.comm)
        kept = keep_mask(space.positions.to(own.device), local[:1].numel(), float(p), seed=0, call=number)
        out = torch.where(kept.view(local.shape), local * scale_of(p), 0.0).movedim(0, axis)
    else:
        mask = _drawn_together(space.comm, lambda: torch.empty(own.shape, dtype=own.dtype).bernoulli_(1 - p))
        out = own._local * fitting(mask.div_(1 - p), space, axis - own.dim())
    if in_place:
        own._local.copy_(out)
        return own
    return rows(out, space, axis)


def _say_hash(comm: Communicator) -> None:
    state = state_of(comm)
    if comm.rank == 0 and not state.sites.setdefault("dropout", 0):
        state.sites["dropout"] = 1
        _log.info(
            "dropout depends on vertices and edges: equal on any number of ranks, and not torch's masks of one device"
        )
