"""Fits bandwidths and latencies of a topology to measured times, under the planners' cost model.

A stage lasts as long as its slowest link: the latency of its route, and the largest load / bandwidth along it
(planner/cost.py). scipy's least squares minimise relative errors, in the logarithms of latencies and of inverse
bandwidths; errors above 5 % count less. Measurements that deviate far more than most are then dropped, at most 15 %,
and it fits again.

Called by `run`. Free to change while the rates of machines that exist only in the cost model are found, with noise and
outliers, and what was not measured stays (`tests/dgcl/calibration/test_fit.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgcl.calibration.connection_classes import ClassModel, FittedClass, Observation
from dgcl.topology import Topology

_PULL = 1e-3
_USUAL = 0.05  # relative error beyond which a measurement counts less
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
    from scipy.optimize import least_squares

    model = ClassModel(topology, observations)
    seconds = np.array([observation.seconds for observation in observations])
    kept = np.ones(len(observations), bool)
    start = logarithms = np.log(model.start(seconds))

    def wrong(logarithms: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Relative errors; figures on which nothing depends stay where they began."""
        errors = np.log(model.predict(np.exp(logarithms)) / seconds)[kept]
        return np.append(errors, _PULL * (logarithms - start))

    for _ in range(2):
        logarithms = least_squares(
            wrong,
            logarithms,
            args=(kept,),
            jac="3-point",  # a slope on one side of a kink leads nowhere
            loss="soft_l1",
            f_scale=_USUAL,
        ).x
        kept = _kept(np.log(model.predict(np.exp(logarithms)) / seconds), kept)
    parameters = np.exp(logarithms)
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
