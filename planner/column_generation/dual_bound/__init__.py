"""Lower bounds from prices: no plan pays less than the cheapest trees do.

Imports :mod:`..pricing` and :mod:`..master`.
"""
