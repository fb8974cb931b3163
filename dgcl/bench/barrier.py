"""A barrier of microseconds: that of ``torch.distributed`` takes longer than what is measured, and lets ranks go one
after the other.
Called by `measure` and `dgcl/calibration/timing`. Free to change while each time stands beside a check of
the rows (`tests/dgcl/bench/test_measure.py`).
"""

import torch

import dgcl
from dgcl.bench.problems import from_pattern
from dgcl.ranks.context import context
from dgcl.ranks.control import Control


class Barrier:
    """Returns when every rank has called it: each receives a row of each other, on one machine or over a network.

    Construction is collective.

    Args:
        control: The ranks.
        timeout: Seconds that a rank waits for another.
    """

    def __init__(self, control: Control, timeout: float) -> None:
        before = context.communicator
        problem = from_pattern("allgather", control.world_size, 1)
        self._comm = dgcl.build_comm_info(
            problem.graph, "uniform", part=problem.part, method="direct", timeout=timeout
        )
        context.communicator = before
        self._row = torch.zeros(self._comm.num_owned, 1)

    def __call__(self) -> None:
        """Wait for all."""
        self._comm.transport.expand(self._row)

    def close(self) -> None:
        """Release the communicator. Idempotent, not collective."""
        self._comm.close()
