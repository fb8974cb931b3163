"""Options of :func:`dgcl.build_comm_info` that most programs never set, in groups.

:class:`~dgcl.planner.PlanOptions`, for planning, is the third group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dgcl.advisor.spelling import Description, read_strategy
from dgcl.grid.grid import Grid, read_grid
from dgcl.partition import BALANCES, METHODS
from dgcl.partition.replication import check_hops
from dgcl.planner import PlanOptions
from dgcl.prepare.parts_choice import AUTO
from dgcl.prepare.sizes import as_bytes
from dgcl.topology.checks import check_choice, check_flag
from dgcl.workers.strategy import EdgePlacement


@dataclass(frozen=True)
class PartitionOptions:
    """How vertices come to their owners.

    Attributes:
        method: ``"metis"`` (few edges between parts), ``"random"``, ``"range"``, or ``"auto"``: METIS or random, by the
            predicted seconds of an aggregation with edges summed at their heads.
        place: Renumber the parts, so that each runs where the plan is fastest; the gain is logged at INFO. A ``part``
            that is given is renumbered too: see ``comm.owned_ids``.
        balance: What ``"metis"`` makes equal over parts: ``"vertices"``, or ``"edges"``: a vertex and its in-edges
            each, which are the work of a layer. The rank that has most work sets the pace of all.

    Raises:
        ValueError, TypeError: One of them cannot be.
    """

    method: str = "metis"
    place: bool = False
    balance: str = "vertices"

    def __post_init__(self) -> None:
        check_choice(self.method, "partition", (*METHODS, AUTO))
        check_flag(self.place, "place")
        check_choice(self.balance, "balance", BALANCES)


@dataclass(frozen=True)
class EdgeOptions:
    """Which rank sums which edge of an aggregation (:mod:`dgcl.workers`).

    Attributes:
        placement: ``"head"`` (the owner of the vertex that the edge leads to; layers get complete neighbourhoods),
            ``"tail"`` (the owner of the vertex it comes from), ``"cover"`` (whatever moves the fewest rows between each
            pair of ranks), or ``"auto"`` (what is predicted fastest).
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
        EdgePlacement(self.placement, self.imbalance, self.per_machine).check()


@dataclass(frozen=True)
class GridOptions:
    """Slices of rows instead of whole ones, summed where a grid says (:mod:`dgcl.grid`).

    Attributes:
        sizes: (parts, depth, slices), of which the product is the number of ranks; ``"1d"``, ``"1.5d"``, ``"2d"``,
            ``"3d"``; or ``"auto"``: what is predicted fastest, ``edges`` without a grid included.
        memory_limit: For ``"auto"``: bytes, or like "8GB", that a rank may take for its edges and rows; None: no
            bound.

    Raises:
        ValueError, TypeError: One of them cannot be, for any number of ranks.
    """

    sizes: str | tuple[int, int, int] | Grid = "auto"
    memory_limit: int | str | None = None

    def __post_init__(self) -> None:
        _set_bytes(self)
        if not is_auto(self.sizes):
            read_grid(self.sizes)


@dataclass(frozen=True)
class ReplicaOptions:
    """Replicas of vertices across machines, instead of rows sent between them (:mod:`dgcl.replication`).

    Attributes:
        hops: How many exchanges of a forward pass build on each other, usually the layers of the model. Replicas reach
            that far. A model with more layers gives wrong numbers, and nothing can notice.
        memory_limit: Bytes, or like "8GB", that a rank may take for the rows and the graph; None: what is free where
            each rank computes. A lower bound is known before anything is copied; halo rows are counted after. Where it
            does not fit, ``"replicate-across-machines"`` refuses, and ``"auto"`` stays with the ordinary plan.

    Raises:
        ValueError, TypeError: One of them cannot be.
    """

    hops: int | None = None
    memory_limit: int | str | None = None

    def __post_init__(self) -> None:
        _set_bytes(self)
        if self.hops is not None:
            check_hops(self.hops)


def _set_bytes(options: GridOptions | ReplicaOptions) -> None:
    """Make a number of ``memory_limit``, which may be given like "8GB"."""
    if options.memory_limit is not None:
        object.__setattr__(options, "memory_limit", as_bytes(options.memory_limit, "memory_limit"))


@dataclass(frozen=True)
class Settings:
    """The groups as one."""

    plan: PlanOptions
    partition: PartitionOptions
    replicas: ReplicaOptions
    edges: EdgeOptions
    grid: GridOptions | None = None
    strategy: Description | None = None


def settle(
    plan: PlanOptions | None,
    partition: str | PartitionOptions,
    replicas: ReplicaOptions | None,
    edges: str | EdgeOptions,
    seed: int | None,
    grid: str | tuple[int, int, int] | GridOptions | None = None,
    strategy: str | Description | None = None,
) -> Settings:
    """Put the options together: groups first, then ``seed``, which replaces that of ``plan``.

    Raises:
        ValueError, TypeError: A group is of another type, or a field is out of range.
    """
    for name, value, kind in (("plan", plan, PlanOptions), ("replicas", replicas, ReplicaOptions)):
        if not (value is None or isinstance(value, kind)):
            raise TypeError(f"{name} must be a dgcl.{kind.__name__}, or None (got {type(value).__name__})")
    if not isinstance(partition, (str, PartitionOptions)):
        raise TypeError(
            f"partition must be a method's name or a dgcl.PartitionOptions (got {type(partition).__name__})"
        )
    if not isinstance(edges, (str, EdgeOptions)):
        raise TypeError(
            f"edges must be a placement's name or a dgcl.EdgeOptions (got {type(edges).__name__})"
        )
    if isinstance(partition, str):
        partition = PartitionOptions(partition)
    if isinstance(edges, str):
        edges = EdgeOptions(edges)
    plan, replicas = plan or PlanOptions(), replicas or ReplicaOptions()
    if edges.placement != "head" and replicas.hops is not None:
        raise ValueError(
            f"edges must be 'head' with replicas, which hold complete neighbourhoods (got {edges.placement!r} and"
            f" {replicas.hops} hops)"
        )
    if grid is not None and not isinstance(grid, GridOptions):
        grid = GridOptions(grid)
    if grid is not None:
        _check_with_grid(grid, partition, replicas, edges)
    described = None if strategy is None else read_strategy(strategy)
    for name, used in (
        ("edges", edges != EdgeOptions()), ("grid", grid is not None), ("replicas", replicas != ReplicaOptions())
    ):  # fmt: skip
        if described is not None and used:
            raise ValueError(
                f"strategy={described.spec!r} goes without {name}=, which is one too; leave one out"
            )
    plan = plan if seed is None else replace(plan, seed=seed)
    return Settings(plan, partition, replicas, edges, grid, described)


def is_auto(value: object) -> bool:
    """Whether a setting is the word "auto"; arrays, which compare element by element, are none."""
    return isinstance(value, str) and value == "auto"


def _check_with_grid(
    grid: GridOptions, partition: PartitionOptions, copies: ReplicaOptions, edges: EdgeOptions
) -> None:
    """Refuse what a grid decides by itself."""
    if grid.memory_limit is not None and not is_auto(grid.sizes):
        raise ValueError(
            f"grid: memory_limit bounds what 'auto' chooses from, and sizes={grid.sizes!r} is a choice; leave one of"
            " them out"
        )
    if edges.placement != "head" and not (edges.placement == "auto" and is_auto(grid.sizes)):
        raise ValueError(
            f"edges={edges.placement!r} goes without a grid, which says who sums an edge; leave one of them out"
        )
    if copies.hops is not None:
        raise ValueError(
            f"grid goes without replicas, which hold complete rows (got {copies.hops} hops); leave one of them out"
        )
    if partition.place:
        raise ValueError(
            "grid goes without place=True, which places parts by their whole rows; leave one of them out"
        )
