"""Simulates the time of a plan when ranks send in the order of dgcl's own transports.

`auto` compares plans of several machines by it, and reports show it. `protocol` has the table of machines and orders:
whoever changes the order in which a transport sends changes it there.
Called by `planner/methods/auto`, `planner/reading/plan_report` and `dgcl/cli/simulate`. Free to change while ranks
send as those of the machine do (`tests/dgcl/cli/test_simulate.py`), and plans chosen by these times are not slower
than those of other methods (`tests/planner/methods/test_executed.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dgcl.planner.plan import Plan
from dgcl.planner.simulator.event_simulator import simulate
from dgcl.planner.simulator.plan_messages import messages

if TYPE_CHECKING:
    from dgcl.topology import Topology

MOST_MESSAGES = 4000  # beyond, a simulation takes seconds
_CPU_CORE, _HOST_MEMORY = "core", "DRAM"  # kinds of connections that tell how a machine's ranks copy


def protocol(topology: Topology) -> dict[str, Any]:
    """Return how ranks on this machine send: arguments of :func:`~dgcl.planner.simulator.event_simulator.simulate`.

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
    kinds = {connection.kind for connection in topology.connections}
    several = len({device.machine for device in topology.devices}) > 1
    cpus, one_stream = _CPU_CORE in kinds, _HOST_MEMORY in kinds
    return {
        "order": "eager" if cpus else "neighbours",
        "shares": "equal" if cpus or one_stream or several else "bytes",
        "sends_at_once": 1 if cpus or one_stream else None,
    }


def executed_seconds(plan: Plan) -> float | None:
    """Return the seconds of a plan as executed on its machine; None where that takes too long to tell."""
    if messages(plan.trees, plan.world_size).num > MOST_MESSAGES:
        return None
    return simulate(plan, **protocol(plan.topology)).seconds
