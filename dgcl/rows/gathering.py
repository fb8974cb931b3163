"""Runs a function of torch on all rows of divided tensors, gathered on every rank: used where no rule applies.

Above ``gather_limit`` elements (:func:`dgcl.dispatch`) it raises instead. Each function's elements are counted, and
logged at the first call and at ten million. A result that would be a view on one device is marked, since here it is a
copy that must not be written into.
Called by `apply_rule`, `indexing`, `reductions`, `products`, `scripts` and others. Free to change while results are
those of one device, and written back where the function changes its argument (`tests/dgcl/rows/test_sweep.py`). The
limit and the log have no test.
"""

import logging
from typing import Any

from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import State, state_of, whole, write
from dgcl.rows.tensor import mapped, replicated, rows_in, tensors_in

_log = logging.getLogger("dgcl")

#: Functions that give views on one device, which must not be written into where they are copies.
_VIEWS = set(
    str.split(
        "narrow select diagonal unfold squeeze split chunk unbind tensor_split view reshape flatten t T"
    )
)
#: Elements of all calls at one place from which they are warned of.
_WARN = 10**7


def gathered(call: Call) -> Any:
    """The result of a function on all rows, replicated. Collective.

    What changes its first argument in place does so to a copy, which is written back.

    Raises:
        ValueError: It takes more elements than the limit.
    """
    args, kwargs = all_rows(call)
    if not call.writes:
        out = replicated(call.func(*args, **kwargs))
        if call.name in _VIEWS:
            for each in tensors_in((out,)):
                each.dgcl_copied = True  # type: ignore[attr-defined]
        return out
    changed = args[0].clone()
    call.func(changed, *args[1:], **kwargs)
    return write(call.args[0], changed)


def of_library(call: Call) -> Any:
    """A compiled function of a library gets what it gets on one device.

    A trial on random rows might read outside of its memory.

    Raises:
        RuntimeError: It changes an argument.
    """
    args, kwargs = all_rows(call)
    inputs = [*tensors_in((*args, *kwargs.values()))]
    before = [each._version for each in inputs]
    out = replicated(call.func(*args, **kwargs), inputs)
    if before != [each._version for each in inputs]:
        raise RuntimeError(
            f"{call.name} writes into rows that are divided over ranks: give it dgcl.local(x), or say that it works"
            " row by row, dgcl.rowwise(f)"
        )
    return out


def all_rows(call: Call) -> tuple[Any, Any]:
    """Arguments with all rows, plain. Collective.

    Raises:
        ValueError: They have more elements than the limit.
    """
    allow(call, sum(each.numel() for each in rows_in(call.args, call.kwargs)))
    return mapped(whole, call.args), mapped(whole, call.kwargs)


def allow(call: Call, elements: int) -> None:
    """Let a call gather so many elements, or refuse it; report its place.

    Raises:
        ValueError: They are more than the limit.
    """
    comm = call.first._space.comm
    state = state_of(comm)
    if elements > state.gather_limit:
        raise ValueError(
            f"{call.name} needs all rows on every rank, {elements:,} elements, and gather_limit is"
            f" {state.gather_limit:,}: write it with sums, means, maxima or products over rows, which are not"
            " gathered; or raise dgcl.dispatch(data, gather_limit=...)"
        )
    if comm.world_size > 1 and comm.rank == 0:
        _report(state, call.name, elements)


def _report(state: State, name: str, elements: int) -> None:
    before = state.sites.get(name, 0)
    state.sites[name] = now = before + elements
    if not before:  # stack_info: the log says which line of the script this is
        _log.info("%s gathers %s elements on every rank", name, f"{elements:,}", stack_info=True)
    if before < _WARN <= now:
        _log.warning("%s has gathered %s elements on every rank so far", name, f"{now:,}", stack_info=True)
