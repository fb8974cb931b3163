"""Losses of ``torch.nn.functional``: terms of this rank's rows, divided by what all ranks count."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from dgcl.rows.gathering import gathered
from dgcl.rows.sums import fitting, total
from dgcl.rows.tensor import Rows, replicated, rows

#: Their rows may be classes: a row of input has a dimension of those.
_OF_CLASSES = {
    "cross_entropy",
    "nll_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
}
#: Row by row on one pair of equal shapes.
_OF_ELEMENTS = {
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
    "hinge_embedding_loss",
    "poisson_nll_loss",
}
LOSSES = _OF_CLASSES | _OF_ELEMENTS


def loss(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """A loss, as on one device for its reduction."""
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return gathered(func, name, args, kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    names = list(given)
    inputs, target = given[names[0]], given[names[1]]
    how = given.get("reduction", "mean")
    if given.get("size_average") is not None or given.get("reduce") is not None:
        return gathered(func, name, args, kwargs)
    if not isinstance(inputs, Tensor) or not isinstance(target, Tensor):
        return gathered(func, name, args, kwargs)
    space, axis = first._space, first._axis
    labels = name in ("cross_entropy", "nll_loss") and not target.is_floating_point()
    if name in _OF_CLASSES:
        if inputs.dim() < 2 or axis != 0 or (type(inputs) is Rows and inputs._axis != 0):
            return gathered(func, name, args, kwargs)
        if target.dim() == 0 or target.shape[0] != space.size or inputs.shape[0] != space.size:
            return gathered(func, name, args, kwargs)
        own, wanted = fitting(inputs, space, -inputs.dim()), fitting(target, space, -target.dim())
    else:
        if inputs.shape != target.shape:
            return gathered(func, name, args, kwargs)
        place = axis - first.dim()
        own, wanted = fitting(inputs, space, place), fitting(target, space, place)
        for extra in ("weight", "pos_weight"):
            if isinstance(given.get(extra), Tensor):
                given[extra] = fitting(given[extra], space, place)
    if any(type(each) is Rows for each in given.values() if each is not inputs and each is not target):
        return gathered(func, name, args, kwargs)
    given |= {names[0]: own, names[1]: wanted, "reduction": "none"}
    given = {key: each for key, each in given.items() if key not in ("size_average", "reduce")}
    terms = func(**given)
    if how == "none":
        return rows(terms, space, 0 if name in _OF_CLASSES else axis)
    value = total(terms.sum(), space.comm, name)
    if how == "sum":
        return replicated(value)
    if labels:
        value = value / _weight_of(wanted, given, terms, space, name)
    elif how == "batchmean":
        value = value / inputs.shape[0]
    else:
        value = value / (space.size * _rest(terms, 0 if name in _OF_CLASSES else axis))
    return replicated(value)


def _rest(terms: Tensor, axis: int) -> int:
    """Elements of a row."""
    return torch.Size(size for at, size in enumerate(terms.shape) if at != axis).numel()


def _weight_of(labels: Tensor, given: dict[str, Any], terms: Tensor, space: Any, name: str) -> Tensor:
    """What the mean of losses of labels divides by: the labels that count, or their weights."""
    weight, ignored = given.get("weight"), given.get("ignore_index", -100)
    counts = labels != ignored
    share = (
        counts.to(terms.dtype)
        if weight is None
        else torch.where(counts, weight[torch.where(counts, labels, 0)], 0.0)
    )
    return total(share.sum(), space.comm, f"weights of {name}")
