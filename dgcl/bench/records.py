"""Settings, cases and results of a measurement, as plain data, from which reports and JSON are made.

A ``size`` counts bytes that a rank receives, its own block included in alltoall and allgather, as nccl-tests counts;
``busiest``, from which ``busbw`` is derived, counts only what comes from others.

Called by `measure`, `bench_report`, `dgcl/cli/bench` and `dgcl/cli/bench_cases`. Free to change while ``algbw`` and
``busbw`` are what docs/bench.md says; fields are those of the JSON file, whose schema `bench_report` numbers
(`tests/dgcl/bench/test_report.py`, `tests/dgcl/bench/test_measure.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgcl.bench.problems import Problem
from dgcl.bench.turns import Timing

if TYPE_CHECKING:
    from dgcl.topology import Topology


@dataclass(frozen=True)
class Settings:
    """What to measure, except for the rows themselves.

    Attributes:
        methods: Names that :func:`dgcl.bench.build_comm_info` knows, or a key of :data:`dgcl.bench.measure.CALLS`.
        dtype: A key of :data:`dgcl.bench.patterns.DTYPES`.
        iterations: Calls of each verb that are timed, for each line.
        warmup: Calls before them that are not.
        topology: What plans are made for.
        device: The kind of device that rows lie on.
        channel: How planned rows travel, as in :func:`dgcl.build_comm_info`.
        show_bound: Print the share of the plans' lower bounds that was reached.
        seed: For planners.
        timeout: Seconds that a rank waits for another.
    """

    methods: tuple[str, ...]
    topology: Topology
    show_bound: bool = False
    dtype: str = "float32"
    iterations: int = 20
    warmup: int = 5
    seed: int = 0
    timeout: float = 300.0
    device: str = "cpu"
    channel: str = "auto"


@dataclass(frozen=True)
class Case:
    """A problem's rows and the widths to send them with.

    Attributes:
        problem: Makes the problem; called on rank 0.
        widths: Elements of a row.
        size_factor: ``size`` over what a rank receives: n/(n-1) for patterns of n ranks of which nccl-tests counts
            the rank's own block, too.
    """

    problem: Callable[[], Problem]
    widths: tuple[int, ...]
    size_factor: float = 1.0


@dataclass(frozen=True)
class Line:
    """What was measured for one method and one width.

    Attributes:
        name: Of the problem.
        method: What exchanged.
        dtype, width: Elements of a row.
        halo_rows, local_rows: Rows delivered, and owned and halo rows, of all ranks together.
        size: Bytes that a rank receives in one call, on average over ranks; for the patterns alltoall and allgather
            with those of its own block, as nccl-tests counts.
        busiest: Bytes that the rank which receives most receives from others in one call (backward: sends back).
        own: Bytes of its own rows that a rank copies into its result, on average over ranks.
        moved: Bytes that all ranks must write: owned and halo rows, or halo rows where they go alone.
        forward, backward: The times of expand and fold.
        copy: Those of plain copies of as many bytes as all ranks write, in the same rounds.
        model_seconds, bound_seconds: The plan's own time and its lower bound, in the cost model of its
            topology; None for a method that is no plan.
        stages: Of the plan.
        messages: (stage, sender, receiver) of one call.
    """

    name: str
    method: str
    dtype: str
    width: int
    halo_rows: int
    local_rows: int
    size: float
    busiest: int
    own: float
    moved: int
    forward: Timing
    backward: Timing
    copy: Timing
    model_seconds: float | None = None
    bound_seconds: float | None = None
    stages: int | None = None
    messages: int = 0

    def algbw(self, timing: Timing) -> float:
        """``size`` in GB over the mean time."""
        return self.size / timing.seconds / 1e9

    def busbw(self, timing: Timing) -> float:
        """GB/s that the busiest rank receives from others (backward: sends back).

        In alltoall and allgather of n ranks this is ``algbw * (n - 1) / n``, as in nccl-tests.
        """
        return self.busiest / timing.seconds / 1e9

    def message_rate(self, timing: Timing) -> float:
        """Messages of all ranks in a second."""
        return self.messages / timing.seconds


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
    """

    ranks: list[RankInfo]
    lines: list[Line]
