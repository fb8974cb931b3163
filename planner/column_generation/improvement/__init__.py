"""Makes plans of whole rows faster: trees exchanged and edges re-parented.

Imports :mod:`..pricing`, :mod:`..master` and :mod:`..rounding`.
"""
