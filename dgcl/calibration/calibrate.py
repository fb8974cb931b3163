"""Calibration: measures a topology's links with this library's channels and fits its figures."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgcl.calibration.check import Checked, check_plans, compare
from dgcl.calibration.classes import Observation
from dgcl.calibration.effort import Effort
from dgcl.calibration.exchange import Exchange, exchange_of
from dgcl.calibration.experiments import Experiment, experiments
from dgcl.calibration.fit import Fit, fit_topology
from dgcl.calibration.timing import Work, time_all
from dgcl.planner import Plan
from dgcl.ranks.control import Control
from dgcl.topology import Topology
from dgcl.topology.latencies import without_latencies

if TYPE_CHECKING:
    from dgcl.transport.cuda.gpu import Device

_log = logging.getLogger("dgcl")


@dataclass(frozen=True)
class Measured:
    """An experiment and its outcome.

    Attributes:
        experiment: What was sent.
        seconds: What it took.
        predicted: What the fitted topology says.
        dropped: Whether the fit left it out.
    """

    experiment: Experiment
    seconds: float
    predicted: float
    dropped: bool


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted topology and everything that it was fitted to.

    Attributes:
        fit: The topology, its classes, and how well they explain what was measured.
        measured: The experiments.
        row_bytes: Bytes of a row.
        checked: Plans that the fit has not seen, predicted by it.
        device: Where the rows were.
    """

    fit: Fit
    measured: tuple[Measured, ...]
    row_bytes: int
    checked: tuple[Checked, ...] = ()
    device: str = "cpu"


def calibrate(
    control: Control,
    topology: Topology | None,
    *,
    row_bytes: int,
    num_checks: int,
    effort: Effort | None,
    device: Device | None,
) -> Calibration | None:
    """Measure and fit. Collective; the topology and the outcome are rank 0's.

    Args:
        control: The ranks; rank r is on device r.
        topology: On rank 0, where the connections are. Its figures only say which connections are alike; latencies
            say nothing.
        row_bytes: Bytes of a row. Narrower rows cost more for each byte: take what is typical of the model.
        num_checks: Plans to time in the same rounds, and to predict.
        effort: How long to measure; None: the default.
        device: This rank's GPU, opened; None: the ranks are on the CPU.

    Raises:
        ValueError: A topology of another size, or without links, or too many checks; on every rank.
    """
    if topology is not None:
        topology = without_latencies(topology)
    plans: list[Experiment] = []
    unseen: list[Plan] = []
    exchanges: list[Exchange] = []

    def prepare() -> Work:
        assert topology is not None, "rank 0 has the topology"
        if topology.num_devices != control.world_size:
            raise ValueError(
                f"topology must have a device for each of {control.world_size} ranks (got {topology.num_devices})"
            )
        plans.extend(experiments(topology, row_bytes))
        exchanges.extend(exchange_of(plan, topology, row_bytes, seed=n) for n, plan in enumerate(plans))
        checks = check_plans(topology, num_checks)
        unseen.extend(plan for plan, _ in checks)
        return [
            *((exchange.programs, row_bytes) for exchange in exchanges),
            *((programs, plan.row_bytes) for plan, programs in checks),
        ]

    every = time_all(control, prepare, effort or Effort(), device)
    if control.rank != 0 or topology is None:
        return None
    seconds, checks = every[: len(plans)], every[len(plans) :]
    observations = [
        Observation(plan.name, exchange.trees, row_bytes, lasted)
        for plan, exchange, lasted in zip(plans, exchanges, seconds, strict=True)
    ]
    fit = fit_topology(topology, observations)
    measured = tuple(
        Measured(plan, lasted, float(predicted), plan.name in fit.dropped)
        for plan, lasted, predicted in zip(plans, seconds, fit.predicted, strict=True)
    )
    _log.info("calibrated %s: median residual %.1f%%", topology.name, 100 * fit.residual)
    kind = "cpu" if device is None else "cuda"
    return Calibration(fit, measured, row_bytes, compare(unseen, fit.topology, checks), kind)
