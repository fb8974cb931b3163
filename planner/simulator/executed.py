"""The simulated time of a plan in the order in which our own transports send.

===============================  ==========  ======  =============  =========================================
machine                          order       shares  sends at once  transport
===============================  ==========  ======  =============  =========================================
CPU ranks (``host:N``)           eager       equal   1              shared memory: the thread in the call
                                                                    copies, first what is there first
GPUs without peer access         neighbours  equal   1              CUDA: one stream copies through the host
GPUs of several machines         neighbours  equal   any            collectives: one exchange of all for a stage
GPUs of one machine              neighbours  bytes   any            CUDA: one kernel for a stage, whose thread
                                                                    blocks are dealt to receivers by bytes
===============================  ==========  ======  =============  =========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dgcl.planner.plan import Plan
from dgcl.planner.simulator.messages import messages
from dgcl.planner.simulator.simulate import Order, Shares, simulate

if TYPE_CHECKING:
    from dgcl.topology import Topology

MOST_MESSAGES = 4000  # beyond, a simulation takes seconds
_CPU_CORE, _HOST_MEMORY = "core", "DRAM"  # kinds of connections that tell how a machine's ranks copy


@dataclass(frozen=True)
class Protocol:
    """How a transport sends; the fields are arguments of :func:`~dgcl.planner.simulator.simulate.simulate`."""

    order: Order
    shares: Shares
    sends_at_once: int | None

    def options(self) -> dict[str, Any]:
        """Return them by name."""
        return {"order": self.order, "shares": self.shares, "sends_at_once": self.sends_at_once}


def protocol(topology: Topology) -> Protocol:
    """Return how ranks on this machine send."""
    kinds = {connection.kind for connection in topology.connections}
    if _CPU_CORE in kinds:
        return Protocol("eager", "equal", 1)
    if _HOST_MEMORY in kinds:
        return Protocol("neighbours", "equal", 1)
    several = len({device.machine for device in topology.devices}) > 1
    return Protocol("neighbours", "equal" if several else "bytes", None)


def executed_seconds(plan: Plan) -> float | None:
    """Return the seconds of a plan as executed on its machine; None where that takes too long to tell."""
    if messages(plan.trees, plan.world_size).num > MOST_MESSAGES:
        return None
    return simulate(plan, **protocol(plan.topology).options()).seconds
