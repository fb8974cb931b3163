"""Rounds fractional plans: trees of whole rows from the trees of answers, and which vertices take which tree.

Imports :mod:`..pricing` and :mod:`..master`.
"""
