"""Options of :func:`dgcl.build_comm_info` that most programs never set, in groups.

:class:`~dgcl.planner.PlanOptions`, for planning, is the third group.
"""

from dataclasses import astuple, dataclass, replace
from types import NoneType
from typing import Any

from dgcl.advisor.auto import Advised
from dgcl.advisor.model import read_model
from dgcl.advisor.spelling import Description, read_strategy
from dgcl.grid.grid import as_grid
from dgcl.partition import BALANCES, METHODS
from dgcl.planner import PlanOptions
from dgcl.prepare.sizes import as_bytes
from dgcl.program.strategy import Strategy
from dgcl.topology.checks import check_choice, check_flag
from dgcl.workers.strategy import EdgePlacement


@dataclass(frozen=True)
class PartitionOptions:
    """How vertices come to their owners.

    Attributes:
        method: ``"metis"``, ``"kaminpar"`` or ``"streaming"`` (few edges between parts), ``"random"``, ``"range"``, or
            ``"auto"``: KaMinPar or METIS (:func:`dgcl.partition.partition_graph`).
        place: Renumber the parts, so that each runs where the plan is fastest; the gain is logged at INFO. A ``part``
            that is given is renumbered too: see ``comm.owned_ids``.
        balance: What METIS or KaMinPar makes equal over parts: ``"vertices"``, or ``"edges"``: a vertex and its
            in-edges each, which are the work of a layer. The rank that has most work sets the pace of all.

    Raises:
        ValueError, TypeError: One of them cannot be.
    """

    method: str = "auto"
    place: bool = False
    balance: str = "vertices"

    def __post_init__(self) -> None:
        check_choice(self.method, "partition", METHODS)
        check_flag(self.place, "place")
        check_choice(self.balance, "balance", BALANCES)


@dataclass(frozen=True)
class EdgeOptions:
    """Which rank sums which edge of an aggregation (:mod:`dgcl.workers`).

    Attributes:
        placement: ``"head"`` (the owner of the vertex that the edge leads to; layers get complete neighbourhoods),
            ``"tail"`` (the owner of the vertex it comes from), or ``"cover"`` (whatever moves the fewest rows between
            each pair of ranks).
        imbalance: For ``"cover"``: no rank sums more than this times the mean number of edges, or than it would with
            ``"head"``; None: no bound.
        per_machine: For ``"cover"``: between machines instead of ranks; within a machine edges are summed at their
            heads.

    Raises:
        ValueError, TypeError: One of them cannot be.
    """

    placement: str = "head"
    imbalance: float | None = None
    per_machine: bool = False

    def __post_init__(self) -> None:
        EdgePlacement(*astuple(self))


@dataclass(frozen=True)
class Settings:
    """The groups as one; a strategy is one, whichever way it was written; ``spelling`` is how."""

    plan: PlanOptions
    partition: PartitionOptions
    strategy: Strategy
    spelling: str
    described: Description


def settle(
    world_size: int,
    *,
    plan: PlanOptions | None = None,
    partition: str | PartitionOptions = "auto",
    seed: int | None = None,
    strategy: str | Description | None = None,
    edges: str | EdgeOptions = "head",
    grid: Any = None,
    model: Any = None,
    memory_limit: int | str | None = None,
) -> Settings:
    """Put the options together: groups first, then ``seed``, which replaces that of ``plan``.

    Raises:
        ValueError, TypeError: A group is of another type, a field is out of range, or there are two strategies.
    """
    for name, value, kinds, what in (
        ("plan", plan, (PlanOptions, NoneType), "dgcl.PlanOptions, or None"),
        ("partition", partition, (PartitionOptions, str), "method's name or a dgcl.PartitionOptions"),
        ("edges", edges, (EdgeOptions, str), "placement's name or a dgcl.EdgeOptions"),
    ):
        if not isinstance(value, kinds):
            raise TypeError(f"{name} must be a {what} (got {type(value).__name__})")
    partition = PartitionOptions(partition) if isinstance(partition, str) else partition
    edges = EdgeOptions(edges) if isinstance(edges, str) else edges
    placed = None if edges == EdgeOptions() else edges
    ways = {
        "strategy": strategy,
        "edges": placed,
        "grid": grid,
        "place": partition.place or None,
    }
    used = [name for name, value in ways.items() if value is not None]
    if len(used) > 1 and used != ["edges", "place"]:
        raise ValueError(
            f"{used[0]}={ways[used[0]]!r} goes without {used[1]}={ways[used[1]]!r}: each says who sums an edge, or on"
            " which rank; leave one of them out"
        )
    is_auto = isinstance(strategy, str) and strategy == "auto"
    if not is_auto and (model is not None or memory_limit is not None):
        raise ValueError(
            "model and memory_limit go with strategy='auto', which chooses by them; leave them out"
        )
    chosen: Strategy = EdgePlacement(*astuple(edges))
    spelling = ", ".join(f"{name}={ways[name]!r}" for name in used) or "strategy='halo'"
    described = Description("halo")
    if grid is not None:
        chosen = Description("grid", as_grid(grid, world_size)).layout(world_size)
    elif is_auto:
        if model is None:
            raise ValueError(
                "strategy='auto' needs model=, such as 'gcn:602,256,41': rows, work and memory follow from its layers"
            )
        limit = None if memory_limit is None else as_bytes(memory_limit, "memory_limit")
        chosen = Advised(read_model(model), limit)
        spelling += f", model={model!r}, memory_limit={memory_limit!r}"
    elif strategy is not None:
        described = read_strategy(strategy)
        chosen = described.layout(world_size)
    plan = plan or PlanOptions()
    return Settings(
        plan if seed is None else replace(plan, seed=seed), partition, chosen, spelling, described
    )
