"""Other in-edges, or other owners, of the same vertices, on the same transport: a communicator takes another's place.

Every wiring has exchange numbers of its own on the transport. A backward of an earlier call holds the communicator of
that call, and so runs along its wiring; where all ranks have given one up, the next wiring takes its number.
"""

from typing import Any, Self, cast
from weakref import ref

from dgcl.planner import PlanOptions
from dgcl.planner.methods import METHODS, make_plan
from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.prepare.local_edges import plan_together, share_of_edges
from dgcl.program.exchange import HALO, PARTIAL
from dgcl.ranks.context import add_communicator
from dgcl.ranks.handle import Handle
from dgcl.topology.checks import check_choice, check_number
from dgcl.workers.exchanges import EDGES

#: What planning is taken to cost, where it is to pay.
PLANNING_SECONDS = 0.2


class Rewiring(Handle):
    """The part of a communicator that changes with its graph.

    Attributes:
        was_rewired: Whether it took the place of another one.
    """

    was_rewired = False
    #: All wirings of a transport by their exchange number, the newest last, shared by them; they keep none alive.
    _wirings: dict[int, ref[Any]] | None = None

    @property
    def _newest(self) -> Self | None:
        """What took its place, or itself; None: that is gone. Older ones make no calls but backwards."""
        return self if self._wirings is None else next(reversed(self._wirings.values()))()

    @property
    def _is_last(self) -> bool:
        """Whether no other wiring of the transport is in use."""
        return all(wired() in (None, self) for wired in (self._wirings or {}).values())

    def rewire(
        self, edges: Any, *, owned_ids: Any = None, method: str = "direct", calls: int | None = None
    ) -> Self:
        """New in-edges of the vertices, and new owners, if they move, by a communicator in the place of this one.

            >>> comm = comm.rewire((sources, heads))                        # the same owners
            >>> x = dgcl.fetch(x, ids)                                      # or rows follow their vertices
            >>> comm = comm.rewire((sources, heads), owned_ids=ids)

        Collective. Ranks stay connected: transport, buffers and process groups are those of before, and so is the count
        of dropout's calls. Local graphs, aggregators and models that hold a communicator are made anew; this one
        raises. A backward of an earlier call runs along the wiring of that call.

        Args:
            edges: ``(sources, heads)`` by id: the in-edges of this rank's vertices.
            owned_ids: ``(n,)`` ids of this rank's vertices from now on; None: those of before.
            method: "direct", which every rank plans by itself; or another planner's, which rank 0 plans.
            calls: How many exchanges this wiring is for. Rank 0 then plans only where straight sends are predicted to
                be slower than their bound by more than 0.2 s in all of them; else rows travel straight.

        Returns:
            The new communicator, which is the current one of this thread.

        Raises:
            ValueError, TypeError: As of :func:`dgcl.build_from_local`; the strategy or the transport cannot be rewired;
                ``owned_ids`` on some ranks alone. On every rank; this communicator goes on.
            CommError: A rank is gone, or makes another call.
        """
        comm: Any = self
        control = comm.control
        wirings = comm._wirings if comm._wirings is not None else {comm._halo: ref(comm)}
        problem: Exception | None = None
        try:
            comm._check_rewirable(method)
            if calls is not None:
                check_number(calls, "calls", positive=True)
        except (TypeError, ValueError) as error:
            problem = error

        def planned(relation: Relation) -> Plan:
            options = PlanOptions(row_bytes=comm.plan.row_bytes)
            if method == "direct" or calls:
                straight = make_plan(relation, comm.plan.topology, "direct", options)
                loss = (straight.predicted_seconds - straight.lower_bound_seconds) * (calls or 0)
                if method == "direct" or loss <= PLANNING_SECONDS:
                    return straight
            return plan_together(control, relation, comm.plan.topology, method, options)

        with control.watched(), comm.collective("rewire"):
            idle = {number for number, wired in wirings.items() if wired() is None}
            ids, part = (comm.layout.owned_ids, comm.part.numpy()) if owned_ids is None else (owned_ids, None)
            share, part, idle_of_ranks = share_of_edges(
                control,
                ids,
                edges,
                planned,
                part,
                problem=problem,
                method=method if calls is None else f"{method}, {calls=}",
                placement=comm.edges,
                report=idle,
            )
            if len(part) != comm.num_nodes:
                raise ValueError(
                    f"owned_ids must be the {comm.num_nodes} vertices of before, shared out anew (got {len(part)})"
                )
            idle = set.intersection(*idle_of_ranks)
            # As many for each wiring, one behind the other.
            number, *_ = [
                comm.transport.add_exchanges({each.name: each.program}, i, min(idle) + i if idle else None)
                for i, each in enumerate(share.exchanges)
            ]
        new = type(comm)(
            share.exchanges,
            share.local,
            share.sizes,
            control,
            comm.transport,
            timeout=comm.timeout,
            device=comm.device,
            edges=comm.edges,
            first_exchange=number,
        )
        new.was_rewired = True
        new.load_state_dict(comm.state_dict())
        new.keep_part(part)
        wirings.pop(number, None)
        wirings[number] = ref(new)
        comm._wirings = new._wirings = wirings
        comm._numbers = {}
        add_communicator(new)
        return cast("Self", new)

    def _check_rewirable(self: Any, method: str) -> None:
        check_choice(method, "method", METHODS)
        self.require_current("rewire")
        what = ""
        if self.edges not in EDGES:
            what = f"strategy={self.edges!r} is decided by the whole graph"
        elif self.exchanges.keys() - {HALO, PARTIAL}:
            what = "edges of several types have an exchange each"
        elif self.offloads or self.windows:
            what = "windows, and the chunks of an open Offload, are those of the old edges"
        elif self.transport.fixed:
            what = f'{self.transport.fixed}; channel="collective" can be rewired'
        if what:
            raise ValueError(f"rewire: {what}; build a new communicator")

    def require_current(self, what: str) -> None:
        """Raise where another communicator has taken the place of this one."""
        if self._newest is not self:
            raise ValueError(
                f"{what}: this communicator was rewired, and its edges are those of before; use the one that"
                " comm.rewire() returned, and local graphs, aggregators and layers made of that"
            )
