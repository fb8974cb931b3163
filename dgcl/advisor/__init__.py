"""Advice: what each way to train a model exactly takes in time and memory, and which one to take.

On the way of an answer: :mod:`~dgcl.advisor.spelling` (strategies as users write them) and
:mod:`~dgcl.advisor.model_costs` (models in a line, or traced); :mod:`~dgcl.advisor.counts` (what each strategy moves,
sums and holds), :mod:`~dgcl.advisor.rank_bytes`, :mod:`~dgcl.advisor.device_rates` and :mod:`~dgcl.advisor.epoch`
(bytes and seconds of that), :mod:`~dgcl.advisor.weighing` (which one to take), :mod:`~dgcl.advisor.advice_row` and
:mod:`~dgcl.advisor.advice` (what is said of it).
"""
