"""Trials of a machine that run in a process of their own, as they may end it.

May import everything of ``dgcl`` but the command line, benchmarks and calibration.
"""
