"""From fractional plans to whole trees: the trees of answers, in whole rows, and the vertices that take them.

Imports :mod:`..pricing` and :mod:`..master`.
"""
