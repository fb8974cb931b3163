"""Layouts: which global rows, and which of their columns, an exchange's rows stand for on one rank."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dgcl.program.exchange import Exchange

Rows = Literal["core", "owned", "halo", "local"]


@dataclass(frozen=True, eq=False)
class Layout:
    """What the rows of one exchange stand for on one rank.

    Attributes:
        owned_ids, halo_ids: Global ids of the owned and of the halo rows, int64.
        num_core: The first owned rows, without replicas: every id is a core row of exactly one rank.
        holds: ``(P,)`` bool: ranks whose rows belong to the same copy of the graph as this rank's. All of them, but
            where vertices are replicated across machines: there each machine has a copy of its own.
        is_replicated: Whether ranks hold replicas of others' vertices; true on every rank or on none.
        summary: A line about it for people; "" for none.
        num_owned: Rows that go into an expand, and come out of a fold.
        num_halo: Rows that an expand brings from other ranks.
        num_local: Rows that come out of an expand, and go into a fold: owned, then halo.
    """

    owned_ids: NDArray[np.int64]
    halo_ids: NDArray[np.int64]
    num_core: int
    holds: NDArray[np.bool_]
    is_replicated: bool = False
    summary: str = ""
    num_owned: int = field(init=False)
    num_halo: int = field(init=False)
    num_local: int = field(init=False)

    def __post_init__(self) -> None:  # numbers: compilers do not see through the lengths of arrays
        counts = {"num_owned": len(self.owned_ids), "num_halo": len(self.halo_ids)}
        for name, count in {**counts, "num_local": sum(counts.values())}.items():
            object.__setattr__(self, name, count)

    def global_ids(self, rows: Rows) -> NDArray[np.int64]:
        """Global ids of the core, owned, halo or local rows, in their order."""
        match rows:
            case "core":
                return self.owned_ids[: self.num_core]
            case "owned":
                return self.owned_ids
            case "halo":
                return self.halo_ids
            case "local":
                return np.concatenate([self.owned_ids, self.halo_ids])
        raise ValueError(f"rows must be 'core', 'owned', 'halo' or 'local' (got {rows!r})")


def layout_of(exchange: Exchange, num_replicas: int) -> Layout:
    """The layout of an exchange; ``num_replicas`` are the last owned rows, which other machines' ranks own too."""
    program, facts = exchange.program, exchange.plan.meta.get("replication")
    holds = np.ones(program.world_size, bool)
    summary = ""
    if facts is not None:
        machines = np.array([device.machine for device in exchange.plan.topology.devices])
        holds = machines == machines[program.rank]
        summary = (
            f"replicated across machines, for {facts['hops']} exchange(s): no row travels between machines; this rank"
            f" keeps {program.num_owned - num_replicas} rows of its own and {num_replicas} replicas; all machines"
            f" together hold {facts['copies']:.2f} copies of a vertex and {facts['edges']:.2f} of an edge"
        )
    num_core = program.num_owned - num_replicas
    return Layout(program.owned_ids, program.halo_ids, num_core, holds, facts is not None, summary)


def layout_of_vertices(items: Layout, slices: int) -> Layout:
    """The layout of vertices for a layout whose items are slices of their rows.

    An owned vertex has all its slices here, a halo row is one slice of a vertex.
    """
    if slices == 1:
        return items
    owned = items.owned_ids[::slices] // slices
    return replace(items, owned_ids=owned, halo_ids=items.halo_ids // slices, num_core=len(owned))
