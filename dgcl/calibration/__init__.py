"""Calibration: a topology's bandwidths and latencies measured inside the job, with the job's own channels.

    >>> from dgcl.calibration import calibrate                     # inside the ranks
    >>> outcome = calibrate(control, topology)                     # doctest: +SKIP

``dgcl topo calibrate`` is the command for it. Three steps: exchanges made by hand are timed
(:mod:`~dgcl.calibration.experiments`, :mod:`~dgcl.calibration.timing`), the cost model is fitted to their times
(:mod:`~dgcl.calibration.fit`), and plans that the fit has not seen are predicted and timed
(:mod:`~dgcl.calibration.check`).
"""

from dgcl.calibration.calibrate import Calibration, calibrate
from dgcl.calibration.effort import Effort

__all__ = ["Calibration", "Effort", "calibrate"]
