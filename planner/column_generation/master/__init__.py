"""The restricted master problem: columns, the linear program over them, and the best fractional plan.

Imports :mod:`..pricing`.
"""
