"""Fits bandwidths and latencies to measured times, under the cost model of the planners.

A stage lasts as long as its slowest link: the latency of its route, and the largest load / bandwidth along it
(planner/cost.py). In the latencies and the *inverse* bandwidths this is a maximum of linear functions. So the
fit alternates: given the parameters, each stage has one link and one connection that decide it; given these,
times are linear in the parameters, and weighted least squares (of relative errors, no parameter negative)
finds better ones. It stops when nothing changes, and keeps the best it has seen. Measurements that deviate far
more than most are left out, and it begins again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgcl.calibration.classes import ClassModel, FittedClass, Observation
from dgcl.topology import Topology

_ROUNDS = 60
_OUTLIER = 3.5  # deviations (of the median kind) beyond which a measurement is dropped
_MOST_DROPPED = 0.15  # of all


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a fit.

    Attributes:
        topology: With the fitted bandwidths and latencies.
        classes: What was fitted.
        predicted: Seconds, by the fitted topology, of each observation.
        dropped: Names of observations that were left out.
        residual: Median of |predicted / measured - 1| over those that were kept.
    """

    topology: Topology
    classes: tuple[FittedClass, ...]
    predicted: NDArray[np.float64]
    dropped: tuple[str, ...]
    residual: float


def fit_topology(topology: Topology, observations: Sequence[Observation]) -> Fit:
    """Fit a topology's bandwidths and latencies to measured exchanges.

    Args:
        topology: Where the connections are; its figures say which connections are alike, and stay where
            nothing that was measured depends on them.
        observations: At least two exchanges.

    Raises:
        ValueError: Too few observations, or an exchange over a link that the topology does not have.
    """
    if len(observations) < 2:
        raise ValueError(f"observations must be at least 2 to fit anything (got {len(observations)})")
    model = ClassModel(topology, observations)
    seconds = np.array([observation.seconds for observation in observations])
    kept = np.ones(len(observations), bool)
    parameters = _best(model, seconds, kept)
    for _ in range(2):
        before = kept
        kept = _kept(np.log(model.predict(parameters) / seconds), before)
        if (kept == before).all():
            break
        parameters = _best(model, seconds, kept)
    fitted = model.topology_of(parameters)
    predicted = ClassModel(fitted, observations).predict_as_it_is()
    errors = np.abs(predicted / seconds - 1)
    return Fit(
        topology=fitted,
        classes=model.describe(parameters, fitted),
        predicted=predicted,
        dropped=tuple(o.name for o, keep in zip(observations, kept, strict=True) if not keep),
        residual=float(np.median(errors[kept])),
    )


def _kept(wrong: NDArray[np.float64], before: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Drop measurements that deviate far more than most, but never more than a few."""
    middle = np.median(wrong[before])
    spread = 1.4826 * np.median(np.abs(wrong[before] - middle))
    far = np.abs(wrong - middle) / max(spread, 0.03)
    kept = far <= _OUTLIER
    most = int(_MOST_DROPPED * len(wrong))
    if (~kept).sum() > most:
        kept = np.ones(len(wrong), bool)
        kept[np.argsort(far)[len(wrong) - most :]] = False
    return kept


def _best(model: ClassModel, seconds: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Parameters of the least relative error over the kept observations."""
    from scipy.optimize import nnls

    parameters = model.start(seconds)
    best, least = parameters, np.inf
    for number in range(_ROUNDS):
        error = float(np.mean(np.abs(np.log(model.predict(parameters) / seconds))[kept]))
        if error < least:
            best, least = parameters, error
        design = model.design(parameters)[kept] / seconds[kept, None]
        free = np.flatnonzero(design.any(axis=0))
        fitted = parameters.copy()
        scale = np.maximum(np.linalg.norm(design[:, free], axis=0), 1e-300)
        fitted[free] = nnls(design[:, free] / scale, np.ones(len(design)))[0] / scale
        # A bandwidth is never infinite: what no measurement needs stays near what it was.
        fitted = np.maximum(fitted, model.least(parameters))
        step = 1.0 if number < 10 else 0.5  # alternating between two answers, it settles between them
        moved = (1 - step) * parameters + step * fitted
        if np.allclose(moved, parameters, rtol=1e-6, atol=1e-15):
            break
        parameters = moved
    return best
