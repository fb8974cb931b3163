"""A barrier of ranks that takes microseconds: each receives one row of every other through the library's own transport.

The barrier of ``torch.distributed`` takes longer than the calls that are timed here, and lets ranks go one after the
other, so that they would not start together.

Called by `measure` and `dgcl/calibration/timing`. Free to change while nobody returns before all have called it, the
thread's current communicator stays what it was, and a rank that fails in it ends the wait of the others
(`tests/dgcl/calibration/test_calibrate.py` tests this last alone).
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
