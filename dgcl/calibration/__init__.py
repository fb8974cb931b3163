"""Calibration: a topology's bandwidths and latencies measured inside the job, with the job's own channels.

``dgcl topo calibrate`` is the command for it. Two steps, in :mod:`~dgcl.calibration.run`: exchanges made by hand are
timed (:mod:`~dgcl.calibration.experiments`, :mod:`~dgcl.calibration.timing`), and the cost model is fitted to their
times (:mod:`~dgcl.calibration.fit`).
"""

from dgcl.calibration.run import Calibration, run_on_host, run_rank
from dgcl.calibration.timing import Effort

__all__ = ["Calibration", "Effort", "run_on_host", "run_rank"]
