"""Replication (the paper's baseline): every rank holds all that its vertices depend on; layers exchange nothing.

That is :mod:`dgcl.replication` with every rank on a machine of its own: nothing is left to exchange.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dgcl.bench.problems import Problem
from dgcl.build import connect
from dgcl.communicator import Communicator
from dgcl.prepare.shares import Share, prepare
from dgcl.program.exchange import HALO
from dgcl.replication import METHOD
from dgcl.replication.choice import Replication
from dgcl.topology import Device, Topology


class ReplicatedCommunicator(Communicator):
    """A communicator whose layers exchange nothing: there is no halo, and :meth:`expand` has nothing to do."""

    def expand(self, rows: Tensor, exchange: str = HALO) -> Tensor:
        """Return the rows unchanged, not copied: they are all local already.

        Raises:
            ValueError: They are not ``(num_owned, *F)``.
        """
        self._check(rows, self.num_owned, "num_owned")
        return rows


def connect_replicated(problem: Callable[[], Problem], hops: int, timeout: float) -> ReplicatedCommunicator:
    """Give every rank what it needs for ``hops`` layers. Collective; ``problem`` is called on rank 0."""
    return connect(lambda: replicate(problem(), hops), ReplicatedCommunicator, timeout)


def replicate(problem: Problem, hops: int) -> list[Share]:
    """Every rank's share: a plan that moves nothing, and a local graph over all replicas."""
    devices = tuple(Device(f"rank{rank}", machine=rank) for rank in range(problem.world_size))
    apart = Topology("ranks without links", devices, (), ())
    wanted = Replication(hops)
    return prepare(
        problem.graph, problem.world_size, apart, part=problem.part, method=METHOD, strategy=wanted
    )
