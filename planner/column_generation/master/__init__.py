"""The restricted master problem: columns, the linear program, the best fractional plan, and bounds from prices.

Imports :mod:`..pricing`.
"""
