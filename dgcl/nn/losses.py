"""Losses over the vertices of all ranks, equal to those of one device, in value and in every gradient.

A mean over a rank's own training vertices is the wrong mean: parts differ in size, and one may hold no
training vertex at all. Here every rank divides by the weight of the training vertices of *all* ranks. Two
things come out:

* the value, on every rank the same bits, is the loss of the whole graph: what one device prints;
* the gradient is that of the rank's own share, so *summing* parameter gradients over ranks
  (:func:`dgcl.nn.sync_gradients`) gives those of one device. ``DistributedDataParallel`` *averages* them
  instead: pass ``ddp=True``, and the gradient (not the value) is multiplied by the number of ranks to make up
  for it.

Where vertices are replicated across machines (:mod:`dgcl.replication`), each counts once: the replicas among the
rows are left out.

A rank without training vertices takes part with a zero that is connected to its outputs, so that its backward
runs the exchanges that its peers wait for. Arguments mean what they mean in ``torch.nn.functional``; ``mask``
selects rows. What masked rows hold, be it infinite or NaN, changes nothing. Nothing here reads a value back from
the device but the comparison of parameters in calls 1, 2, 4, 8, ... (:mod:`dgcl.nn.drift`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dgcl.nn.arguments import current, require_dense, require_floats, require_int64
from dgcl.nn.core_rows import first_rows, num_counted
from dgcl.nn.drift import compare_at_times
from dgcl.ranks.tensors import is_transformed, require_tensors
from dgcl.topology.checks import check_choice, check_flag

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

__all__ = ["bce_with_logits", "cross_entropy", "mse", "nll"]


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    ddp: bool = False,
    comm: Communicator | None = None,
) -> Tensor:
    """Cross-entropy of the whole graph, as ``torch.nn.functional.cross_entropy`` on one device.

    Args:
        logits: (num_owned, num_classes, *F), this rank's rows; or the core rows alone, here and below.
        labels: (num_owned, *F) int64 classes, or class probabilities in the shape of ``logits``.
        mask: (num_owned,) bool, the rows that count; default all. Other rows may have any label.
        weight: (num_classes,) weights of the classes. A mean over labels is then weighted, as in torch.
        reduction: "mean" or "sum", over all ranks.
        ignore_index: labels that do not count.
        label_smoothing: as in torch.
        ddp: the gradients will be averaged over ranks, not summed.
        comm: the communicator; default the current one.

    Returns:
        A scalar, the same on every rank.
    """
    mask = _check(logits, labels, mask, reduction, ddp, ("logits", "labels"))
    _check_weight("weight", weight, logits, of_classes=True)
    require_int64(ignore_index=ignore_index)
    if not isinstance(label_smoothing, Real) or not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1] (got {label_smoothing!r})")
    logits, labels, mask, comm = _without_replicas(logits, labels, mask, comm)
    logits = _keep_rows(logits, mask, 0.0)
    if labels.is_floating_point():
        if labels.shape != logits.shape:
            raise ValueError(
                f"labels must be int64 classes, or probabilities of shape {tuple(logits.shape)} (got {labels.dtype},"
                f" shape {tuple(labels.shape)}); for classes call .long()"
            )
        labels = _keep_rows(labels, mask, 0.0)
        losses = F.cross_entropy(logits, labels, weight, reduction="none", label_smoothing=label_smoothing)
        return _reduce(*_counted(losses, mask), reduction, ddp, comm, "cross_entropy")
    labels = _keep_rows(labels, mask, ignore_index)
    with _labels_explained(logits, labels, ignore_index, comm):
        losses = F.cross_entropy(
            logits,
            labels,
            weight,
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        )
    return _reduce(losses, _label_weight(labels, weight, ignore_index), reduction, ddp, comm, "cross_entropy")


def nll(
    log_probabilities: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    ddp: bool = False,
    comm: Communicator | None = None,
) -> Tensor:
    """Negative log-likelihood of the whole graph, as ``torch.nn.functional.nll_loss`` on one device.

    Args:
        log_probabilities: (num_owned, num_classes, *F), this rank's rows, for example from ``log_softmax``.
        labels: (num_owned, *F) int64 classes.
        mask, weight, reduction, ignore_index, ddp, comm: as in :func:`cross_entropy`.

    Returns:
        A scalar, the same on every rank.
    """
    mask = _check(log_probabilities, labels, mask, reduction, ddp, ("log_probabilities", "labels"))
    _check_weight("weight", weight, log_probabilities, of_classes=True)
    require_int64(ignore_index=ignore_index)
    log_probabilities, labels, mask, comm = _without_replicas(log_probabilities, labels, mask, comm)
    labels = _keep_rows(labels, mask, ignore_index)
    log_probabilities = _keep_rows(log_probabilities, mask, 0.0)
    with _labels_explained(log_probabilities, labels, ignore_index, comm):
        losses = F.nll_loss(log_probabilities, labels, weight, ignore_index=ignore_index, reduction="none")
    return _reduce(losses, _label_weight(labels, weight, ignore_index), reduction, ddp, comm, "nll")


def bce_with_logits(
    logits: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
    ddp: bool = False,
    comm: Communicator | None = None,
) -> Tensor:
    """Binary cross-entropy of the whole graph, as torch's ``binary_cross_entropy_with_logits`` on one device.

    Args:
        logits: (num_owned, *F), this rank's rows.
        targets: of the same shape, in [0, 1].
        mask: (num_owned,) bool, the rows that count; default all.
        weight: weights of the elements, in a shape that broadcasts to that of ``logits``. As in torch, a mean
            does not divide by them.
        pos_weight: weights of positive targets, for example (num_classes,).
        reduction, ddp, comm: as in :func:`cross_entropy`. A mean is over all elements of the rows that count.

    Returns:
        A scalar, the same on every rank.
    """
    mask = _check(logits, targets, mask, reduction, ddp, ("logits", "targets"), same_shape="targets")
    _check_weight("weight", weight, logits, of_classes=False)
    _check_weight("pos_weight", pos_weight, logits, of_classes=False)
    weight = None if weight is None else weight.expand_as(logits)
    logits, targets, mask, comm = _without_replicas(logits, targets, mask, comm)
    weight = first_rows(weight, len(logits))
    losses = F.binary_cross_entropy_with_logits(
        _keep_rows(logits, mask, 0.0),
        _keep_rows(targets.to(logits.dtype), mask, 0.0),
        weight,
        reduction="none",
        pos_weight=pos_weight,
    )
    return _reduce(*_counted(losses, mask), reduction, ddp, comm, "bce_with_logits")


def mse(
    outputs: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    *,
    reduction: str = "mean",
    ddp: bool = False,
    comm: Communicator | None = None,
) -> Tensor:
    """Mean squared error of the whole graph, as ``torch.nn.functional.mse_loss`` on one device.

    Args:
        outputs: (num_owned, *F), this rank's rows.
        targets: of the same shape.
        mask: (num_owned,) bool, the rows that count; default all.
        reduction, ddp, comm: as in :func:`cross_entropy`. A mean is over all elements of the rows that count.

    Returns:
        A scalar, the same on every rank.
    """
    mask = _check(outputs, targets, mask, reduction, ddp, ("outputs", "targets"), same_shape="targets")
    outputs, targets, mask, comm = _without_replicas(outputs, targets, mask, comm)
    losses = F.mse_loss(_keep_rows(outputs, mask, 0.0), _keep_rows(targets, mask, 0.0), reduction="none")
    return _reduce(*_counted(losses, mask), reduction, ddp, comm, "mse")


@contextmanager
def _labels_explained(
    outputs: Tensor, labels: Tensor, ignore_index: int, comm: Communicator
) -> Iterator[None]:
    """Name rank and row where torch refuses labels; nothing is looked at where it does not."""
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        if labels.dtype != torch.int64:
            raise TypeError(f"labels must be int64 classes (got {labels.dtype}); call .long()") from error
        shape = (len(outputs), *outputs.shape[2:])
        if outputs.dim() < 2 or labels.shape != shape:
            raise ValueError(
                f"outputs must have shape (num_owned, num_classes, *F) and labels (num_owned, *F) (got"
                f" {tuple(outputs.shape)} and {tuple(labels.shape)})"
            ) from error
        num_classes = outputs.shape[1]
        wrong = ((labels < 0) | (labels >= num_classes)) & (labels != ignore_index)
        if not wrong.any():
            raise
        place = wrong.nonzero()[0]
        row = int(place[0])
        raise ValueError(
            f"labels must be classes 0..{num_classes - 1}, the columns of the outputs (got {int(labels[tuple(place)])}"
            f" in row {row} of rank {comm.rank}, vertex {int(comm.owned_ids[row])}; {int(wrong.sum())} such labels on"
            f" this rank); give the model more columns, or leave rows out with mask= or labels of"
            f" ignore_index={ignore_index}"
        ) from error


def _check(
    outputs: Tensor,
    targets: Tensor,
    mask: Tensor | None,
    reduction: str,
    ddp: bool,
    names: tuple[str, str],
    same_shape: str | None = None,
) -> Tensor | None:
    """Refuse what torch would broadcast or misread silently, and return the mask on the outputs' device."""
    first, second = names
    require_floats(**{first: outputs})
    require_tensors(**{second: targets})
    require_dense(**{first: outputs, second: targets})
    if targets.is_complex():
        raise TypeError(f"{second} must be real (got {targets.dtype})")
    check_choice(reduction, "reduction", ("mean", "sum"))
    check_flag(ddp, "ddp")
    if same_shape and outputs.shape != targets.shape:
        raise ValueError(
            f"{same_shape} must have the outputs' shape {tuple(outputs.shape)} (got {tuple(targets.shape)})"
        )
    if outputs.dim() == 0 or targets.dim() == 0 or len(targets) != len(outputs):
        raise ValueError(
            f"labels must have a row for each of the {_rows(outputs)} outputs (got {_rows(targets)}): dispatch"
            " them with dgcl.dispatch_features as you dispatch features"
        )
    if targets.device != outputs.device:
        raise ValueError(f"labels must be on {outputs.device}, as the outputs are (got {targets.device})")
    if mask is None:
        return None
    require_tensors(mask=mask)
    if mask.dtype != torch.bool or mask.shape != outputs.shape[:1]:
        raise ValueError(
            f"mask must be bool with shape ({len(outputs)},), one for each output row"
            f" (got {mask.dtype}, shape {tuple(mask.shape)})"
        )
    return mask.to(outputs.device)


def _rows(x: Tensor) -> str:
    return str(len(x)) if x.dim() else "no"


def _check_weight(name: str, weight: Tensor | None, outputs: Tensor, *, of_classes: bool) -> None:
    """Refuse weights that are not one for each class, or, of elements, do not broadcast to the outputs."""
    if weight is None:
        return
    require_floats(**{name: weight}) if of_classes else require_tensors(**{name: weight})
    require_dense(**{name: weight})
    if weight.is_complex():
        raise TypeError(f"{name} must be real (got {weight.dtype})")
    if weight.dim() and weight.device != outputs.device:
        raise ValueError(f"{name} must be on {outputs.device}, as the outputs are (got {weight.device})")
    if of_classes:
        fits = weight.shape == outputs.shape[1:2]
        expected = f"have shape {tuple(outputs.shape[1:2])}, one for each class"
    else:
        expected = f"broadcast to the outputs' shape {tuple(outputs.shape)}"
        try:
            fits = torch.broadcast_shapes(weight.shape, outputs.shape) == outputs.shape
        except RuntimeError:
            fits = False
    if not fits:
        raise ValueError(f"{name} must {expected} (got {tuple(weight.shape)})")


def _without_replicas(
    outputs: Tensor, targets: Tensor, mask: Tensor | None, comm: Communicator | None
) -> tuple[Tensor, Tensor, Tensor | None, Communicator]:
    """The rows that count, each vertex once, and the communicator."""
    comm = current(comm)
    count = num_counted(comm, outputs)
    return first_rows(outputs, count), first_rows(targets, count), first_rows(mask, count), comm


def _keep_rows(x: Tensor, mask: Tensor | None, other: float) -> Tensor:
    """``x`` with ``other`` in the rows outside the mask; their gradient is exactly zero."""
    if mask is None:
        return x
    return torch.where(
        mask.view(-1, *[1] * (x.dim() - 1)), x, torch.full((), other, dtype=x.dtype, device=x.device)
    )


def _counted(losses: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The losses with zeros in the rows that do not count, and the number of elements in those that do."""
    if mask is None:
        return losses, torch.full((), losses.numel(), dtype=torch.float64, device=losses.device)
    elements_per_row = losses[:1].numel() if len(losses) else 0
    return _keep_rows(losses, mask, 0.0), mask.sum(dtype=torch.float64) * elements_per_row


def _label_weight(labels: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The weight of all labels that count: what torch divides a mean by. Other losses are zero already."""
    counts = labels != ignore_index
    if weight is None:
        return counts.sum(dtype=torch.float64)
    return torch.where(counts, weight.detach()[torch.where(counts, labels, 0)], 0.0).sum(dtype=torch.float64)


def _reduce(
    losses: Tensor, weight: Tensor, reduction: str, ddp: bool, comm: Communicator, name: str
) -> Tensor:
    """The loss of all ranks with the gradient of this rank's share; ``weight`` is its part of a divisor."""
    wide = torch.float64 if losses.dtype == torch.float64 else torch.float32
    own = losses.sum(dtype=wide)
    # float64 counts exactly beyond the 2**24 vertices of float32.
    if not is_transformed():
        with comm.collective(name):
            compare_at_times(losses, comm)
    total, divisor = comm.all_reduce_sum(torch.stack([own.detach().double(), weight]), name).unbind()
    share, value = (own / divisor.to(wide), total / divisor) if reduction == "mean" else (own, total)
    out: Tensor = _WithValue.apply(share, value.to(wide), comm.world_size if ddp else 1)
    return out.to(losses.dtype)


class _WithValue(torch.autograd.Function):
    """The given value, with the gradient of the share times a factor."""

    @staticmethod
    def forward(share: Tensor, value: Tensor, factor: int) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.factor = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad * ctx.factor, None, None
