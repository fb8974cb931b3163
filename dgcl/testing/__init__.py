"""Try out whether a model of your own gives the numbers of one device on several ranks.

May import everything of ``dgcl`` but the command line, benchmarks and calibration.
"""

from dgcl.testing.equivalence import assert_equivalent

__all__ = ["assert_equivalent"]
