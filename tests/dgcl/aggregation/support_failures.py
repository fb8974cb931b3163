"""What :mod:`tests.dgcl.aggregation.test_failures` shares with other tests."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dgcl.aggregation import extreme_kernels, step_execution
from dgcl.aggregation.block import Block
from tests.support.aggregator import CASE_BY_NAME, connect, features

AGGREGATING = [(Block, "sum"), (extreme_kernels, "extremes"), (extreme_kernels, "scatter_rows")]


class Fault(threading.local):
    """What a rank does in one of its calls of some functions; until then it makes its steps one by one."""

    left = -1

    def __init__(self, happens: Callable[[], Any], patch: pytest.MonkeyPatch, places: Any = AGGREGATING):
        def counted(real: Any) -> Any:
            def call(*given: Any, **options: Any) -> Any:
                self.left -= 1
                if self.left == -1:
                    happens()
                return real(*given, **options)

            return call

        for owner, name in places:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        real = step_execution._repeated
        patch.setattr(step_execution, "_repeated", lambda *given: None if self.left >= 0 else real(*given))


def fail_at(
    fault: Fault,
    reduce: str,
    options: dict[str, Any],
    place: int,
    backward: bool,
    calls_before: int = 0,
    timeout: float = 60.0,
):
    """The fault happens on rank 1 in its sum, or search for extremes, number ``place``.

    After some calls compiled code carries out the steps of the others.
    """
    comm = connect(CASE_BY_NAME["hub"], 3, "cover", timeout=timeout)
    x = comm.dispatch_features(features(26, 2)).requires_grad_()
    aggregate = comm.aggregator(reduce, **options)  # type: ignore[arg-type]
    for _ in range(calls_before):
        aggregate(x).sum().backward()
    y = aggregate(x) if backward or reduce == "max" else x.sum()
    if comm.rank == 1:
        fault.left = place
    for _ in range(3):  # ranks that need no row of rank 1's are stopped by a later call
        if backward:
            y.sum().backward(retain_graph=True)
        else:
            aggregate(x)
