"""Advice: what each way to train a model exactly takes in time and memory, and which one to take.

On the way of an answer: :mod:`~dgcl.advisor.spelling` (strategies as users write them) and
:mod:`~dgcl.advisor.model` (models in a line, or traced); :mod:`~dgcl.advisor.counts` (what each strategy moves, sums
and holds: one line there makes a new strategy a candidate), :mod:`~dgcl.advisor.memory`, :mod:`~dgcl.advisor.rates` and
:mod:`~dgcl.advisor.epoch` (bytes and seconds of that), :mod:`~dgcl.advisor.weighing` (which one to take),
:mod:`~dgcl.advisor.rows` and :mod:`~dgcl.advisor.advice` (what is said of it).
"""
