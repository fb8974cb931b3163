"""Calibration: a topology's bandwidths and latencies measured inside the job, with the job's own channels.

    >>> from dgcl.calibration import calibrate                     # inside the ranks
    >>> outcome = calibrate(control, topology)                     # doctest: +SKIP

``dgcl topo calibrate`` is the command for it. Three steps: exchanges made by hand are timed
(:mod:`~dgcl.calibration.experiments`, :mod:`~dgcl.calibration.timing`), the cost model is fitted to their times
(:mod:`~dgcl.calibration.fit`), and plans that the fit has not seen are predicted and timed
(:mod:`~dgcl.calibration.check`).
"""

from __future__ import annotations

from dgcl.calibration.calibrate import Calibration, Measured, calibrate
from dgcl.calibration.check import MOST_CHECKS, Checked, median_error
from dgcl.calibration.classes import FittedClass, Observation
from dgcl.calibration.effort import Effort
from dgcl.calibration.fit import Fit, fit_topology

__all__ = [
    "MOST_CHECKS",
    "Calibration",
    "Checked",
    "Effort",
    "Fit",
    "FittedClass",
    "Measured",
    "Observation",
    "calibrate",
    "fit_topology",
    "median_error",
]
