"""Matrix products of tensors whose rows are divided over ranks: ``matmul``, ``mm``, ``mv``, ``dot``, ``linear``, ``@``.

Rows times a matrix that all ranks have stay rows, without a message. Where the product sums over rows (``x.T @ y``),
ranks' shares are summed. Rows times rows of the other side (``z @ z.T``) bring all of the second to every rank. Other
forms are computed of all rows (``gathering``).
Called by `rule_table`. Free to change while values and gradients of each product are those of one device
(`tests/dgcl/rows/test_sweep.py`; in scripts: `tests/dgcl/rows/test_programs.py`).
"""

from typing import Any

from torch import Tensor

from dgcl.rows.gathering import allow, gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import fitting, total, whole
from dgcl.rows.tensor import Rows, plain, replicated, rows


def matmul(call: Call) -> Any:
    """``matmul``, ``mm``, ``mv``, ``dot``, ``linear``, ``@``."""
    func, args = call.func, call.args
    if call.name == "linear":
        own = args[0]
        if (
            type(own) is Rows
            and own._axis < own.dim() - 1
            and not any(type(each) is Rows for each in (*args[1:], *call.kwargs.values()))
        ):
            return rows(func(own._local, *args[1:], **call.kwargs), own._space, own._axis)
        return gathered(call)
    pair: Any = args if len(args) == 2 else (args[0], call.kwargs.get("other"))
    a, b = pair
    if call.name == "__rmatmul__":
        a, b, func = b, a, Tensor.matmul
    if not all(
        isinstance(each, Tensor) and each.dim() and each.layout == call.first.layout for each in (a, b)
    ):
        return gathered(call)
    a_rows, b_rows = type(a) is Rows, type(b) is Rows
    if a_rows and a._axis < a.dim() - 1:
        if b.dim() > 2 and (b_rows or b.dim() != a.dim() or a._axis != a.dim() - 2):
            return gathered(call)
        if b_rows:
            allow(call, b.numel())
        return rows(func(a._local, whole(b)), a._space, a._axis)
    if (b_rows and b._axis == max(b.dim() - 2, 0)) or (a_rows and not b_rows):  # summed over rows
        space = a._space if a_rows else b._space
        left, right = fitting(a, space, -1), fitting(b, space, -1 if b.dim() == 1 else -2)
        return replicated(total(func(left, right), space.comm, f"{call.name} of rows"))
    if not a_rows and b.dim() == 2 and a.dim() < 3:
        return rows(func(plain(a), b._local), b._space, a.dim() - 1)
    return gathered(call)
