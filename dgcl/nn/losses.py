"""Any loss over rows of all ranks, equal to that of one device, in value and in every gradient.

A mean over a rank's own training vertices is the wrong mean: parts differ in size, and some have none. Every rank
divides by the weight of the training vertices of *all* ranks. The value has the same bits on every rank; the gradient
is that of the rank's own rows, so parameter gradients must be *summed* over ranks (:func:`dgcl.nn.sync_gradients`).
Masked rows may hold infinity or NaN. Nothing reads a value back from the device.
Called by users (``dgcl.nn.loss``) and `metrics`. Free to change while value and gradients are those of torch's loss on
all rows, whatever the mask, and ranks with other settings raise on all (`tests/dgcl/nn/test_losses.py`).
"""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import CrossEntropyLoss, Module, NLLLoss

from dgcl.communicator import Communicator
from dgcl.nn.layer_arguments import current, require_dense, require_floats, require_whole_rows
from dgcl.nn.reduce import with_value
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.torch_private import at_trace_time
from dgcl.topology.checks import check_choice, check_flag


def loss(
    function: Callable[..., Tensor],
    *,
    reduction: str | None = None,
    on_every_rank: bool = False,
    ddp: bool = False,
    comm: Communicator | None = None,
) -> Callable[..., Tensor]:
    """Make the loss of the whole graph from a loss function or module of one device.

        >>> value = dgcl.nn.loss(F.l1_loss)(model(x), y, train_mask)
        >>> criterion = dgcl.nn.loss(torch.nn.CrossEntropyLoss(weight=weight))

    What comes back takes the tensors of ``function``, this rank's rows of each, those of vertices or of
    edges; then a mask of the rows that count, ``(n,)`` bool, or None; and its keywords. It is collective, and gives a
    scalar, the same on every rank.

    Args:
        function: Of ``torch.nn.functional``, a module, or your own: called with ``reduction="none"`` where it takes
            one, it gives a loss, or several, for each row. A mean divides by the number of these, and that of
            cross-entropy and nll by the weights of the labels, as in torch.
        reduction: "mean" or "sum", over all ranks, or "batchmean", as of ``kl_div``; None: that of the module, or
            "mean".
        on_every_rank: The tensors are no rows of this rank: each rank has computed all of them alike, as from
            :func:`global_sum`. The loss then counts once.
        ddp: The gradients will be averaged over ranks, not summed.
        comm: The communicator; default the current one.

    Raises:
        TypeError, ValueError: When it is called: tensors that do not fit, or a function that gives a scalar alone.
    """
    if not callable(function):
        raise TypeError(f"function must be a function or a module of losses (got {type(function).__name__})")
    inner: Any = function.func if isinstance(function, functools.partial) else function
    settings: dict[str, Any] = dict(getattr(function, "keywords", {}))
    if isinstance(function, Module):
        settings = {
            name: value
            for name in ("weight", "pos_weight", "ignore_index", "reduction")
            if (value := getattr(function, name, None)) is not None
        }
    reduction = settings.get("reduction", "mean") if reduction is None else reduction
    if comm is not None:
        current(comm)  # which refuses what is none
    check_flag(ddp, "ddp")
    check_flag(on_every_rank, "on_every_rank")
    of_labels = inner in (F.cross_entropy, F.nll_loss) or isinstance(inner, (CrossEntropyLoss, NLLLoss))
    check_choice(reduction, "reduction", ("mean", "sum", *["batchmean"] * (not of_labels)))
    called, num_tensors = _unreduced(function)
    name = getattr(inner, "__name__", type(inner).__name__)

    def of_all_ranks(*arguments: Any, mask: Tensor | None = None, **options: Any) -> Tensor:
        tensors = arguments[:num_tensors]
        if len(arguments) == num_tensors + 1 and mask is None:
            mask = arguments[-1]
        elif len(arguments) != num_tensors:
            raise TypeError(
                f"{name} takes {num_tensors} tensors and a mask (got {len(arguments)} arguments); name its options"
            )
        check_rows_of_loss(tensors, mask)
        used = current(comm)
        if not on_every_rank:
            require_whole_rows(used, tensors[0])
        outputs, *targets = tensors
        every = {"weight": None, "ignore_index": -100, **settings, **options}
        if of_labels and targets[0].is_floating_point() and targets[0].shape != outputs.shape:
            raise ValueError(
                f"labels must be int64 classes, or probabilities of shape {tuple(outputs.shape)} (got"
                f" {targets[0].dtype}, shape {tuple(targets[0].shape)}); for classes call .long()"
            )
        if of_labels and not targets[0].is_floating_point():
            weight, ignored = every["weight"], every["ignore_index"]
            labels = _keep_rows(targets[0], mask, ignored)
            outputs = _keep_rows(outputs, mask, 0.0)
            with _labels_explained(outputs, labels, ignored, used):
                losses = called(outputs, labels, **options)
            divisor = _label_weight(labels, weight, ignored)
        else:
            losses = called(*(_keep_rows(each, mask, 0.0) for each in tensors), **options)
            _check_losses(losses, outputs, targets, name)
            if reduction == "batchmean":
                losses = losses.flatten(1).sum(1)
            losses, divisor = _counted(losses, mask)
        return _reduce(losses, divisor, reduction, ddp, used, name, on_every_rank)

    return of_all_ranks


def _unreduced(function: Any) -> tuple[Callable[..., Tensor], int]:
    """What gives a loss for each row, and how many tensors it takes."""
    takes_reduction, num_tensors = _read_signature(function)
    if isinstance(function, Module) and hasattr(function, "reduction"):
        function = copy.copy(function)  # with the same parameters
        function.reduction = "none"
    return functools.partial(function, reduction="none") if takes_reduction else function, num_tensors


@at_trace_time
def _read_signature(function: Callable[..., Tensor]) -> tuple[bool, int]:
    """Whether there is a ``reduction`` among its parameters, and how many of these have no default."""
    parameters = inspect.signature(function.forward if isinstance(function, Module) else function).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        each for each in parameters.values() if each.kind in positional and each.default is each.empty
    ]
    return "reduction" in parameters, len(required)


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


def check_rows_of_loss(tensors: tuple[Any, ...], mask: Any) -> None:
    """Refuse what torch would broadcast or misread silently."""
    outputs = tensors[0]
    require_floats(outputs=outputs)
    for each in tensors:
        require_tensors(targets=each)
        require_dense(targets=each)
        if not outputs.dim() or not each.dim():
            raise ValueError(
                "outputs and labels must have rows (got a scalar): a loss of what every rank computes alike is"
                " dgcl.nn.count_once(loss)"
            )
        if len(each) != len(outputs):
            raise ValueError(
                f"labels must have a row for each of the {len(outputs)} outputs (got {len(each)}): dispatch"
                " them with dgcl.dispatch_features as you dispatch features"
            )
    check_mask(mask, len(outputs))


def check_mask(mask: Any, num_rows: int) -> None:
    """Refuse what does not say of each row whether it counts; None is that all do."""
    if mask is None:
        return
    require_tensors(mask=mask)
    if mask.dtype != torch.bool or mask.shape != (num_rows,):
        raise ValueError(
            f"mask must be bool with shape ({num_rows},), one for each output row"
            f" (got {mask.dtype}, shape {tuple(mask.shape)})"
        )


def _check_losses(losses: Any, outputs: Tensor, targets: list[Tensor], name: str) -> None:
    """Refuse a function that gives no losses of rows, and tensors that it has broadcast."""
    if not isinstance(losses, Tensor) or losses.dim() == 0 or len(losses) != len(outputs):
        raise ValueError(
            f"function must give a loss for each row, with reduction='none' where it takes that ({name} gave"
            f" {getattr(losses, 'shape', losses)} for {len(outputs)} rows): a scalar of this rank's rows cannot be made"
            " that of all; write it as a function of rows, or of dgcl.nn.global_sum"
        )
    elementwise = losses.shape == outputs.shape or losses.numel() > outputs.numel()
    for each in targets:
        if elementwise and each.shape != outputs.shape and each.is_floating_point():
            raise ValueError(
                f"targets must have the outputs' shape {tuple(outputs.shape)} (got {tuple(each.shape)})"
            )


def _keep_rows(x: Tensor, mask: Tensor | None, other: float) -> Tensor:
    """``x`` with ``other`` in the rows outside the mask; their gradient is exactly zero."""
    if mask is None:
        return x
    return x.masked_fill(~mask.view(-1, *[1] * (x.dim() - 1)), other)


def _counted(losses: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The losses with zeros in the rows that do not count, and the number of elements in those that do."""
    if mask is None:
        return losses, torch.full((), losses.numel(), dtype=torch.float64, device=losses.device)
    elements_per_row = losses.shape[1:].numel()
    return _keep_rows(losses, mask, 0.0), mask.sum(dtype=torch.float64) * elements_per_row


def _label_weight(labels: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The weight of all labels that count: what torch divides a mean by. Other losses are zero already."""
    counts = labels != ignore_index
    if weight is None:
        return counts.sum(dtype=torch.float64)
    return torch.where(counts, weight.detach()[torch.where(counts, labels, 0)], 0.0).sum(dtype=torch.float64)


# ``DistributedDataParallel`` *averages* gradients: with ``ddp`` they (not the value) are multiplied by the number of
# ranks. A rank without training vertices takes part with a zero that is connected to its outputs, so that its
# backward runs the exchanges that its peers wait for.
def _reduce(
    losses: Tensor,
    weight: Tensor,
    reduction: str,
    ddp: bool,
    comm: Communicator,
    name: str,
    on_every_rank: bool,
) -> Tensor:
    """The loss of all ranks with the gradient of this rank's share; ``weight`` is its part of a divisor."""
    wide = torch.float64 if losses.dtype == torch.float64 else torch.float32
    own = losses.sum(dtype=wide)
    # Ranks with other settings hear of it by the name.
    name += f", reduction={reduction!r}" * (reduction != "mean") + ", ddp=True" * ddp
    name += ", on_every_rank=True" * on_every_rank
    # float64 counts exactly beyond the 2**24 vertices of float32.
    total = torch.stack([own.detach().double(), weight])
    if not on_every_rank:
        total = comm.all_reduce_sum(total, name)
    value, divisor = total.unbind()
    share = own
    if reduction != "sum":
        share, value = own / divisor.to(wide), value / divisor
    factor = (comm.world_size if ddp else 1) / (comm.world_size if on_every_rank else 1)
    return with_value(share, value.to(wide), factor).to(losses.dtype)
