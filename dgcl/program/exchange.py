"""An exchange: a relation, the plan that serves it, and one rank's program of that plan.

Called by `dgcl/aggregation/`, `dgcl/prepare/` and 8 more folders. Free to change while programs deliver
what the plan proves (`tests/dgcl/program/`).
"""

from dataclasses import dataclass

from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation
from dgcl.program.rank_program import Program

#: The exchange that :func:`dgcl.graph_allgather` uses; every communicator has it.
HALO = "halo"

#: The exchange of partial sums, where edges are not all summed by the owners of their heads: a rank's halo rows of it
#: are the vertices of others for which it has a part of the sum.
PARTIAL = "partial"

#: The exchanges of ``comm.slices`` and ``comm.rows`` on a grid of depth 1, where they are others than the two above.
SLICES, ROWS = "slices", "rows"


@dataclass(frozen=True, eq=False)
class Exchange:
    """One exchange of a communicator, as one rank sees it.

    Attributes:
        name: What calls and messages call it; :data:`HALO` for the rows that a rank's edges read.
        plan: The whole plan, with its relation; the same on every rank.
        program: What this rank does in every call.
    """

    name: str
    plan: Plan
    program: Program

    @property
    def relation(self) -> Relation:
        """Which classes of rows every rank needs."""
        return self.plan.relation
