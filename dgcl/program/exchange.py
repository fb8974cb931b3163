"""One exchange of a communicator as a rank sees it: its name, its plan and the rank's program.

A plan has a *relation*: which ranks need which classes of rows. A *program* is the part of the plan that one rank
carries out. The names of the usual exchanges are below: "halo" is the first one of every communicator.
Called by `dgcl/communicator`, `dgcl/prepare/share`, `dgcl/aggregation/aggregator`, `dgcl/transport/describe`,
`dgcl/rows/view` and others. Free to change while ranks know exchanges by number and name alike, and "halo" alone is not
named in messages (`tests/dgcl/transport/test_several_exchanges.py`).
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
