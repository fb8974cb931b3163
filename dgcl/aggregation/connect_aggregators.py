"""Makes an aggregator on all ranks together: compares what they ask for, and connects windows of the halo.

A *window* is a part of the halo rows with an exchange of its own. Windows are added to the transport once for each
number and way of division. What may fail on one rank alone comes before that, so that all can give up together.
Called by `dgcl/communicator`. Free to change while differing requests and bad windows are refused on every rank
(`tests/dgcl/aggregation/test_windows.py`, `tests/dgcl/aggregation/test_aggregator.py`), and after a failure of one rank
a second try works (`tests/dgcl/aggregation/test_failures.py`).
"""

import functools
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dgcl.aggregation.aggregator import Aggregating, Aggregator, Reduce, check_reduction, number_of
from dgcl.aggregation.windowed import HaloWindows
from dgcl.planner.window_plans import By, check_windows
from dgcl.program.exchange import HALO
from dgcl.program.rank_program import Program
from dgcl.program.window_programs import halo_windows, window_programs
from dgcl.ranks.set_up import set_up_call
from dgcl.ranks.whole_rows import agree, require_same


@functools.partial(set_up_call, name="aggregator")
def connect_aggregator(
    comm: Aggregating, reduce: Reduce, edge_weight: Tensor | None, windows: int | None, by: By
) -> Aggregator:
    """Make an aggregator; arguments and errors as of :meth:`Communicator.aggregator`. Collective."""
    problem: Exception | None = None
    number = 1
    try:
        comm.require_current("aggregator")
        number = check_windows(windows, by, comm.num_nodes, comm.world_size)
        check_reduction(comm, reduce, edge_weight)
        if number > 1:
            if comm.was_rewired:
                raise ValueError(
                    "windows go with a graph that stays, as each rewire would leave theirs behind; leave them out, or"
                    " build a new communicator"
                )
            if reduce in ("max", "min"):
                raise ValueError(
                    f"windows go with sums and means (got reduce={reduce!r}): which of equal elements wins is known"
                    " when all windows' rows are there; leave windows out"
                )
    except (TypeError, ValueError) as error:
        problem = error
    report = None if problem else (reduce, windows, by, _kind(edge_weight), comm.local.num_owned)
    with comm.collective("aggregator"):
        arguments: list[tuple[Any, ...]] = agree(comm.control, problem, report)
        *settings, owned = zip(*arguments, strict=True)
        require_same(**dict(zip(("reduce", "windows", "by", "edge_weight"), settings, strict=True)))
        divided = None
        if number > 1 and number_of(comm, HALO) is not None:
            divided = _connect_windows(comm, number, by, np.array(owned))
    return Aggregator(comm, reduce, edge_weight, windows=divided)


def _kind(edge_weight: Tensor | None) -> str | None:
    if edge_weight is None:
        return None
    return "learned" if edge_weight.requires_grad else "constant"


#: Of each communicator the windows of its halo that are connected, by their number and how rows are divided.
_windows: WeakKeyDictionary[Any, dict[tuple[int, By], HaloWindows]] = WeakKeyDictionary()


def _connect_windows(
    comm: Aggregating, num_windows: int, by: By, num_owned: NDArray[np.int64]
) -> HaloWindows:
    """The windows of the halo, their programs known to the transport. Collective the first time."""
    divisions = _windows.setdefault(comm, {})
    if (num_windows, by) not in divisions:
        halo = comm.exchanges[HALO]
        programs: list[Program] = []
        window = np.zeros(0, np.int64)
        problem: Exception | None = None
        try:  # all that a rank does alone comes first: after the others have added windows it must not fail
            window = halo_windows(halo.program, halo.plan, num_windows, by)
            programs = window_programs(halo.program, halo.plan, num_owned, num_windows, by)
        except (MemoryError, ValueError) as error:
            problem = error
        agree(comm.control, problem)
        named = {f"{HALO}, window {i} of {num_windows}": each for i, each in enumerate(programs, start=1)}
        first = comm.transport.add_exchanges(named, comm.number_of(HALO))
        divisions[num_windows, by] = HaloWindows(
            range(first, first + num_windows),
            window,
            expanded=max(each.num_halo + each.num_relay for each in programs),
            arriving=max(each.num_arrivals for each in programs),
        )
    return divisions[num_windows, by]
