"""Checks the options of ``build_comm_info`` together, and makes the strategy's text the object that arranges edges.

:class:`PartitionOptions` is one group of options; :class:`~dgcl.planner.PlanOptions`, for planning, is the other.
Called by users and `build`. Free to change while an option that cannot be is refused with its name and what was given,
on every rank, whichever rank gave it (`tests/dgcl/test_options.py`).
"""

from dataclasses import dataclass
from typing import Any

from dgcl.advisor.auto_strategy import Advised
from dgcl.advisor.model_costs import read_model
from dgcl.advisor.spelling import Description, read_strategy
from dgcl.grid.grid_strategy import GridPlacement
from dgcl.partition import BALANCES, METHODS
from dgcl.planner import PlanOptions
from dgcl.program.strategy import Strategy
from dgcl.topology.checks import check_choice, shown
from dgcl.topology.sizes import as_bytes


@dataclass(frozen=True)
class PartitionOptions:
    """How vertices are divided over ranks.

    Attributes:
        method: ``"metis"``, ``"kaminpar"`` or ``"streaming"`` (few edges between parts), ``"random"``, ``"range"``, or
            ``"auto"``: KaMinPar or METIS (:func:`dgcl.partition.partition_graph`).
        balance: What METIS or KaMinPar makes equal over parts: ``"vertices"``, or ``"edges"``: a vertex and its
            in-edges each, which are the work of a layer. The rank that has most work sets the pace of all.

    Raises:
        ValueError, TypeError: One of them cannot be.
    """

    method: str = "auto"
    balance: str = "vertices"

    def __post_init__(self) -> None:
        check_choice(self.method, "partition", METHODS)
        check_choice(self.balance, "balance", BALANCES)


@dataclass(frozen=True)
class Settings:
    """What a rank asks for; ``spelling`` is how it was written, ``windows`` those of "windows:W"."""

    plan: PlanOptions
    partition: PartitionOptions
    strategy: Strategy
    spelling: str
    windows: int | None


def settle(
    world_size: int,
    *,
    plan: PlanOptions | None = None,
    partition: str | PartitionOptions = "auto",
    strategy: str | Description | Strategy = "halo",
    model: Any = None,
    memory_limit: int | str | None = None,
) -> Settings:
    """Check the options together; the strategy becomes what arranges it.

    Raises:
        ValueError, TypeError: An option is of another type or out of range, or two of them contradict each other.
    """
    partition = PartitionOptions(partition) if isinstance(partition, str) else partition
    plan = PlanOptions() if plan is None else plan
    for name, value, kind, what in (
        ("plan", plan, PlanOptions, "dgcl.PlanOptions, or None"),
        ("partition", partition, PartitionOptions, "method's name or a dgcl.PartitionOptions"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {what} (got {type(value).__name__})")
    spelling, windows = f"strategy={strategy!r}", None
    chosen: Any = strategy
    if isinstance(strategy, str) and strategy == "auto":
        if model is None:
            raise ValueError(
                "strategy='auto' needs model=, such as 'gcn:602,256,41': rows, work and memory follow from its layers"
            )
        limit = None if memory_limit is None else as_bytes(memory_limit, "memory_limit")
        chosen = Advised(read_model(model), limit)
        spelling += f", model={model!r}, memory_limit={memory_limit!r}"
    elif model is not None or memory_limit is not None:
        raise ValueError(
            "model and memory_limit go with strategy='auto', which chooses by them; leave them out"
        )
    elif isinstance(strategy, (str, Description)):
        described = read_strategy(strategy)
        chosen, windows = described.layout(world_size), described.windows
    elif isinstance(strategy, GridPlacement):
        chosen = Description("grid", strategy.grid).layout(world_size)
    elif not hasattr(strategy, "arrange"):
        raise TypeError(
            "strategy must be text such as 'cover' or 'grid:2,2,1', or an object such as dgcl.EdgePlacement('cover')"
            f" (got {shown(strategy)})"
        )
    return Settings(plan, partition, chosen, spelling, windows)
