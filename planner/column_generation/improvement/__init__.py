"""Makes plans of whole rows faster: trees exchanged, edges re-parented, coordinate descent over bundles.

Imports :mod:`..pricing`, :mod:`..master` and :mod:`..rounding`.
"""
