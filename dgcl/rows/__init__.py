"""One device's view: tensors that show the shape and values of one device, while each rank stores its rows.

A :class:`~dgcl.rows.tensor.Rows` is one dimension of a tensor shared out over ranks, with one device's shape and
without storage of its own; a :class:`~dgcl.rows.tensor.Replicated` is the same on every rank. A plain tensor is
taken as replicated. Torch's functions on them give what they give on one device: ``table`` says which function is of
which kind, and what has no rule is tried for being row by row (``rowwise``), else computed of all rows (``gathering``).

Gradients of rows are complete on their owner; those of replicated and plain tensors are a rank's *share*, whose sum
over ranks is the gradient (``differentiate``).

In the order of the data: ``space`` (which rows), ``tensor`` (the two kinds), ``apply_rule`` (a function of torch meets
them), ``rule_table`` (by kind), then one file for each kind.
"""

from dgcl.rows import apply_rule as apply_rule  # the classes of tensors call it
from dgcl.rows.tensor import Replicated, Rows

__all__ = ["Replicated", "Rows"]
