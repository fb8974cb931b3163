"""From fractional flows to whole trees: rounding, flow decomposition, assembly.

Imports :mod:`..pricing`.
"""
