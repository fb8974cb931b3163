"""Products of matrices: rows times columns stay rows, sums over rows are summed over ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dgcl.rows.gathering import allow, gathered
from dgcl.rows.sums import fitting, total, whole
from dgcl.rows.tensor import Rows, plain, replicated, rows


def matmul(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``matmul``, ``mm``, ``mv``, ``dot``, ``linear``, ``@``."""
    a, b = args[0], args[1] if len(args) > 1 else kwargs.get("weight", kwargs.get("other"))
    if name == "__rmatmul__":
        a, b, func, name, args = b, a, Tensor.matmul, "matmul", (b, a)
    if name == "linear":
        if type(a) is Rows and a._axis < a.dim() - 1 and type(b) is not Rows:
            rest = (*args[2:], *kwargs.values())
            if not any(type(each) is Rows for each in rest):
                return rows(func(a._local, *args[1:], **kwargs), a._space, a._axis)
        return gathered(func, name, args, kwargs)
    if (
        not isinstance(a, Tensor)
        or not isinstance(b, Tensor)
        or a.dim() == 0
        or b.dim() == 0
        or a.layout != b.layout
    ):
        return gathered(func, name, args, kwargs)
    a_rows, b_rows = type(a) is Rows, type(b) is Rows
    if (
        a_rows
        and a._axis < a.dim() - 1
        and (b.dim() < 3 or (b.dim() == a.dim() and not b_rows and a._axis == a.dim() - 2))
    ):
        if b_rows:
            allow(name, b, b.numel())
        return rows(
            func(a._local, whole(b)), a._space, a._axis if b.dim() > 1 or a._axis < a.dim() - 1 else 0
        )
    inner_a = a_rows and a._axis == a.dim() - 1
    inner_b = b_rows and b._axis == max(b.dim() - 2, 0)
    if (inner_a or inner_b) and not (a_rows and not inner_a):
        if b_rows and not inner_b and inner_a:
            return gathered(func, name, args, kwargs)
        space = a._space if inner_a else b._space
        left, right = fitting(a, space, -1), fitting(b, space, -1 if b.dim() == 1 else -2)
        return replicated(total(func(left, right), space.comm, f"{name} of rows"))
    if b_rows and not a_rows and b.dim() == 2 and b._axis == 1 and a.dim() < 3:
        return rows(func(plain(a), b._local), b._space, a.dim() - 1)
    return gathered(func, name, args, kwargs)
