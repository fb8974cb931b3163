"""``build_from_local``: builds a communicator where each rank gives its own vertices and in-edges, and none has all.

Owned rows keep the order of ``owned_ids``. What needs the whole graph (METIS, grids, some covers) is not available.
Called by users and `dgcl/nn/shared_nodes`. Free to change while results are those of one device for every strategy and
order of ids, and ids without one owner, or a failure of one rank, raise on every rank
(`tests/dgcl/test_local_build.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dgcl.build import check_calls, connect_shares
from dgcl.planner import PlanOptions
from dgcl.planner.methods import METHODS
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.prepare.local_edges import plan_together, share_of_edges
from dgcl.ranks.context import context
from dgcl.ranks.machines import places_of_ranks, topology_of_job
from dgcl.ranks.set_up import set_up_call
from dgcl.topology import Topology
from dgcl.topology.checks import check_choice
from dgcl.transport.cuda import open_devices

if TYPE_CHECKING:
    import torch

    from dgcl.communicator import Communicator


@set_up_call
def build_from_local(
    owned_ids: Any,
    edges: Any,
    topology: str | Topology = "auto",
    *,
    method: str = "auto",
    strategy: str = "halo",
    plan: PlanOptions | None = None,
    timeout: float = 300.0,
    channel: str = "auto",
    device: str | torch.device = "cpu",
    wire: torch.dtype | None = None,
) -> Communicator:
    """Plan and connect from each rank's own vertices and in-edges. Collective; call :func:`dgcl.init` first.

        >>> comm = dgcl.build_from_local(owned_ids, (sources, heads))

    Owned rows are in the order of ``owned_ids``, and :meth:`Communicator.dispatch_edges` takes this rank's own rows of
    edges in the order of ``edges``. No rank has the edges of another, but those that it is to sum. What needs the whole
    graph (METIS, grids, covers of pairs of machines or with a bound) is not for such graphs.

    Args:
        owned_ids: ``(n,)`` ids of this rank's vertices, torch or numpy, in any order. All ranks together own each of 0
            to N - 1 once.
        edges: ``(sources, heads)``, or an ``edge_index``: the in-edges of these vertices, by id.
        topology, timeout, channel, device, wire: As of :func:`dgcl.build_comm_info`.
        method: A planner's, see ``dgcl plan --help``.
        strategy: "halo", "tail" or "cover", as of :func:`dgcl.build_comm_info`.
        plan: Options of planning.

    Returns:
        This rank's communicator, which is from now on the current one of this thread.

    Raises:
        ValueError, TypeError: On every rank: a vertex has two owners or none, nobody owns a source, a head is not owned
            by the rank that gives it; or there is no such method, strategy, topology or device.
        CommError: A rank is gone.
    """
    control = context.require_control()
    control.limit_waits(timeout)
    opened = open_devices(control, device)
    places = places_of_ranks(control, "" if opened is None else opened.name)
    topology = topology_of_job(control, topology, places)
    problem = None
    try:
        check_calls(timeout, wire)
        check_choice(method, "method", METHODS)
        check_choice(strategy, "strategy", ("halo", "tail", "cover"))
    except (TypeError, ValueError) as error:
        problem = error

    def planned(relation: Relation) -> Plan:
        return plan_together(control, relation, topology, method, plan)

    placement = "head" if strategy == "halo" else strategy
    share, part, _ = share_of_edges(
        control, owned_ids, edges, planned, problem=problem, method=method, placement=placement
    )
    comm = connect_shares(share, timeout, channel, opened, wire)
    comm.keep_part(part)
    return comm
