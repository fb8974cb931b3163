"""Losses of ``torch.nn.functional`` of tensors whose rows are divided over ranks.

Each rank's terms are summed over ranks and divided by what all ranks count. A mean of cross-entropy or nll divides by
the weights of all ranks' labels, others by the number of all elements. Losses that are not in ``LOSSES`` follow the
general way of functions (``apply_rule``).
Called by `rule_table`. Free to change while values and gradients are torch's, with weights, ignored labels and each
reduction (`tests/dgcl/rows/test_programs.py`, "printed", ``LOSSES``).
"""

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from dgcl.aggregation.sparse import sum_dtype
from dgcl.rows.gathering import gathered
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import fitting, total
from dgcl.rows.tensor import Rows, replicated, rows

#: A row of input has a dimension of classes, and rows may themselves be classes.
_OF_CLASSES = {
    "cross_entropy",
    "nll_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
}
#: Of each element, of two tensors of one shape.
_OF_ELEMENTS = set(
    str.split(
        """mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    soft_margin_loss hinge_embedding_loss poisson_nll_loss"""
    )
)
LOSSES = _OF_CLASSES | _OF_ELEMENTS


def loss(call: Call) -> Any:
    """A loss, as on one device for its reduction."""
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):  # one of C++ has none
        return gathered(call)
    bound.apply_defaults()
    arguments: dict[str, Any] = dict(bound.arguments)
    (first, inputs), (second, target), *others = arguments.items()
    if not isinstance(inputs, Tensor) or not isinstance(target, Tensor):
        return gathered(call)
    space, axis = call.first._space, call.first._axis
    classes = call.name in _OF_CLASSES
    known = arguments.get("size_average") is arguments.get("reduce")
    if classes:
        known = known and axis == 0 and inputs.dim() > 1 and target.dim() > 0
        known = known and inputs.shape[0] == target.shape[0] == space.size
        places = -inputs.dim(), -target.dim()
    else:
        known = known and inputs.shape == target.shape
        places = (axis - call.first.dim(),) * 2
    if not known or (classes and any(type(each) is Rows for _, each in others)):
        return gathered(call)
    if not classes:
        arguments |= {key: fitting(each, space, places[0]) for key, each in others if "weight" in key}
    arguments |= {
        first: fitting(inputs, space, places[0]),
        second: fitting(target, space, places[1]),
        "reduction": "none",
    }
    terms = call.func(
        **{key: each for key, each in arguments.items() if key not in ("size_average", "reduce")}
    )
    how, place = bound.arguments["reduction"], 0 if classes else axis
    if how == "none":
        return rows(terms, space, place)
    dtype = terms.dtype
    if how == "mean" and not dtype.is_floating_point:
        return gathered(call)  # whole numbers have no mean: torch's own error
    terms = terms.to(sum_dtype(dtype))
    value = total(terms.sum(), space.comm, call.name)
    if how == "mean" and call.name in ("cross_entropy", "nll_loss") and not target.is_floating_point():
        labels, weight = arguments[second], arguments["weight"]
        counts = labels != arguments["ignore_index"]
        each = counts.to(terms.dtype) if weight is None else torch.where(counts, weight[labels * counts], 0.0)
        value = value / total(each.sum(), space.comm, f"weights of {call.name}")
    elif how == "mean":
        value = value / (space.size * math.prod(size for at, size in enumerate(terms.shape) if at != place))
    elif how == "batchmean":
        value = value / inputs.shape[0]
    return replicated(value.to(dtype))
