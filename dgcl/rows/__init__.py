"""One device's view: tensors that show the shape and values of one device, while each rank stores its rows.

``tensor`` has the two kinds: ``Rows`` is one dimension shared out over ranks, by a ``space``; ``Replicated`` is the
same on every rank, as plain tensors are taken to be. A function of torch meets them in ``apply_rule``, which finds
its kind in ``rule_table``; one without a rule is tried for being row by row (``rowwise``), else computed of all rows
(``gathering``). Gradients of rows are complete on their owner; of others each rank has a share, and the sum is the
gradient (``differentiate``). To add a rule, see docs/developing.md; tests are in tests/dgcl/rows.
"""

from dgcl.rows import apply_rule as apply_rule  # the classes of tensors call it
