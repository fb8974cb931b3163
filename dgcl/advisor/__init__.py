"""Advice: what each way to train a model exactly takes in time and memory, and which one to take.

- :mod:`~dgcl.advisor.spelling`: strategies as users write them.
"""

from __future__ import annotations
