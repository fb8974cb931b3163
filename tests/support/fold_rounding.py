"""Bounds the rounding error of a fold.

Inside a rank, rows of 16-bit floats are added in float32. A sum that goes on to the next rank is rounded to 16 bits
once, and so is the result at the owner. A contribution that is sent unchanged is not rounded. So each contribution is
rounded at most once per stage in which it travels, and once more at the owner, whatever the number of ranks.

For contributions ``x_1 ... x_n`` to one element, with H stages, unit roundoff u of the rows' type and v of the type
used for the additions, the error of a fold without overflow is at most::

    ((1 + u)^(H + 1) * (1 + v)^(n - 1) - 1) * sum |x_i|  +  (n + H) * s

where s is half the smallest positive number of the rows' type, for values below its normal range (N. Higham,
Accuracy and Stability of Numerical Algorithms, sections 2.2 and 4.2). For float32 and float64 rows u is 0, because
they are added in their own type and not rounded further.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RoundingBound:
    """The error of an element is at most ``relative * sum |x_i| + absolute``."""

    relative: float
    absolute: float

    def share(self, found: torch.Tensor, exact: torch.Tensor, sizes: torch.Tensor) -> float:
        """The largest error as a fraction of the bound; a correct fold gives at most 1.

        Args:
            found: The result of a fold.
            exact: The sums in float64, or better.
            sizes: The sums of absolute values, in float64.
        """
        allowed = self.relative * sizes + self.absolute
        shares = (found.double() - exact).abs() / allowed.clamp_min(torch.finfo(torch.float64).tiny)
        return float(shares.max()) if shares.numel() else 0.0


def fold_bound(dtype: torch.dtype, num_stages: int, num_ranks: int) -> RoundingBound:
    """The bound for rows of a floating-point type.

    Args:
        dtype: Of the rows.
        num_stages: Of the plan.
        num_ranks: How many ranks contribute to an element at most.

    Raises:
        TypeError: The type is not a floating-point one.
    """
    if not dtype.is_floating_point:
        raise TypeError(f"dtype: expected a floating-point type, got {dtype}; sums of integers are exact")
    added_in = torch.float32 if dtype.itemsize == 2 else dtype
    unit, unit_added = (torch.finfo(each).eps / 2 for each in (dtype, added_in))
    narrowed = unit if dtype != added_in else 0.0
    # float64 sums have no wider reference type: 2^-50 allows for the error of the reference.
    relative = (1 + narrowed) ** (num_stages + 1) * (1 + unit_added) ** max(num_ranks - 1, 0) - 1 + 2.0**-50
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2
    return RoundingBound(relative, (num_ranks + num_stages) * smallest)
