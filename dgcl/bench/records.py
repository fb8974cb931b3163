"""Settings and results of a measurement: plain data, from which reports and JSON are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dgcl.bench.problems import Problem

if TYPE_CHECKING:
    from dgcl.topology import Topology


@dataclass(frozen=True)
class Settings:
    """What to measure, except for the rows themselves.

    Attributes:
        methods: Names that :func:`dgcl.bench.methods.build_comm_info` knows, or a key of
            :data:`dgcl.bench.measure.CALLS`; "+" and a fold may follow.
        fold: One of :data:`dgcl.bench.folds.FOLDS`.
        dtype: A key of :data:`dgcl.bench.patterns.DTYPES`.
        iterations: Calls of each verb that are timed, for each line.
        warmup: Calls before them that are not.
        layers: What "replication" must hold out for.
        topology: What plans are made for.
        show_bound: Print the share of the plans' lower bounds that was reached.
        seed: For planners.
        timeout: Seconds that a rank waits for another.
        trace: Record one exchange of the last case's widest rows by the first planned method.
    """

    methods: tuple[str, ...]
    topology: Topology
    show_bound: bool = False
    fold: str = "sum"
    dtype: str = "float32"
    iterations: int = 20
    warmup: int = 5
    layers: int = 2
    seed: int = 0
    timeout: float = 300.0
    trace: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.num_devices


@dataclass(frozen=True)
class Case:
    """A problem's rows and the widths to send them with.

    Attributes:
        problem: Makes the problem; called on rank 0.
        widths: Elements of a row.
        fraction: Of the boundary vertices that the problem sends.
    """

    problem: Callable[[], Problem]
    widths: tuple[int, ...]
    fraction: float = 1.0


@dataclass(frozen=True)
class Timing:
    """The result of one verb (expand or fold) in one line.

    Attributes:
        seconds: Mean time of a call.
        best, median: Of the samples' means.
        copy_seconds: Mean time of plain copies of as many bytes, in the same turns.
        wrong: Elements that were wrong, over all calls and ranks.
        samples: Mean time of a call in each sample.
        copy_samples: Likewise.
    """

    seconds: float
    best: float
    median: float
    copy_seconds: float
    wrong: int
    samples: list[float]
    copy_samples: list[float]


@dataclass(frozen=True)
class Line:
    """What was measured for one method and one width.

    Attributes:
        name, fraction: Of the problem.
        method: What exchanged.
        dtype, width: Elements of a row.
        halo_rows, local_rows: Rows delivered, and owned and halo rows, of all ranks together.
        size: Bytes delivered to a rank in one call, on average over ranks.
        moved: Bytes that all ranks must write: owned and halo rows, or halo rows where they go alone.
        forward, backward: The times of expand and fold.
        model_seconds, bound_seconds: The plan's own time and its lower bound, in the cost model of its
            topology; None for a method that is no plan.
        stages: Of the plan.
        note: What else there is to say.
        host_seconds: What a call takes the host, where it does not wait for its end.
    """

    name: str
    fraction: float
    method: str
    dtype: str
    width: int
    halo_rows: int
    local_rows: int
    size: float
    moved: int
    forward: Timing
    backward: Timing
    model_seconds: float | None = None
    bound_seconds: float | None = None
    stages: int | None = None
    note: str = ""
    host_seconds: float | None = None

    def algbw(self, timing: Timing) -> float:
        """GB/s that arrive at a rank, on average."""
        return self.size / timing.seconds / 1e9

    def busbw(self, timing: Timing) -> float:
        """GB/s that all ranks together write, if they write nothing but their results."""
        return self.moved / timing.seconds / 1e9


@dataclass(frozen=True)
class RankInfo:
    """Where a rank runs, and its share of the first problem."""

    rank: int
    process: int
    host: str
    threads: int
    num_owned: int
    num_halo: int
    device: str = "cpu"


@dataclass(frozen=True)
class Measurement:
    """A whole run.

    Attributes:
        ranks: Where it ran.
        lines: What was measured.
        trace: Events of one exchange and its backward, if asked for (:mod:`dgcl.bench.trace`).
    """

    ranks: list[RankInfo]
    lines: list[Line]
    trace: dict[str, Any] | None = None
