"""Makes plans of whole rows faster: trees exchanged, edges re-parented, coordinate descent over bundles.

Imports :mod:`..trees`, :mod:`..pricing` and :mod:`..master`.
"""
