"""dgcl.nn losses: the value and every gradient of torch's own loss over all vertices on one device."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dgcl.nn
from dgcl.errors import DisagreementError
from tests.support.layer_ranks import NUM_NODES, WORLD_SIZES, on_ranks, rows
from tests.support.samples import named

LABELS = torch.arange(NUM_NODES) * 7 % 4
CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.25, 0.0], dtype=torch.float64)
MASKS = {
    "all": None,
    "some": torch.arange(NUM_NODES) % 3 == 0,
    "rank-0-only": torch.arange(NUM_NODES) < 5,
    "one-vertex": torch.arange(NUM_NODES) == NUM_NODES - 1,
}


@dataclass
class Loss:
    """One of torch's or a user's, the shape of the outputs, the other tensors, and options."""

    function: Callable[..., Tensor]
    shape: tuple[int, ...]
    targets: Tensor | tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def others(self) -> tuple[Tensor, ...]:
        return self.targets if isinstance(self.targets, tuple) else (self.targets,)

    def whole(self, outputs: Tensor, chosen: Any, reduction: str) -> Tensor:
        """On one device."""
        tensors = [outputs[chosen], *(each[chosen] for each in self.others)]
        if self.function is focal:
            return getattr(focal(*tensors), reduction)()
        if isinstance(self.function, torch.nn.Module):
            module = copy.copy(self.function)
            module.reduction = reduction
            return module(*tensors)
        return self.function(*tensors, reduction=reduction, **self.options)

    def on_rank(self, comm: Any, outputs: Tensor, others: Any = None, mask: Any = None, **kinds: Any) -> Any:
        """The value and the gradient of a rank's rows."""
        own, *others = (each[comm.owned_ids] for each in (outputs, *(others or self.others)))
        own.requires_grad_()
        own_mask = None if mask is None else mask[comm.owned_ids]
        value = dgcl.nn.loss(self.function, **kinds)(own, *others, own_mask, **self.options)
        value.backward()
        return value, own.grad


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    """A user's: a loss for each row, and no reduction."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    return (1 - (-losses).exp()).square() * losses


IGNORED = torch.where(torch.arange(NUM_NODES) % 5 == 0, -100, LABELS)
LOSSES = {
    "ce": Loss(F.cross_entropy, (4,), LABELS),
    "ce-weighted": Loss(F.cross_entropy, (4,), LABELS, {"weight": CLASS_WEIGHTS}),
    "ce-smooth": Loss(
        F.cross_entropy,
        (4,),
        LABELS,
        {"label_smoothing": 0.2, "weight": CLASS_WEIGHTS},
    ),
    "ce-ignored": Loss(F.cross_entropy, (4,), IGNORED),
    "ce-other-ignored": Loss(F.cross_entropy, (4,), LABELS, {"ignore_index": 1}),
    "ce-probabilities": Loss(F.cross_entropy, (4,), rows(4, seed=2).softmax(1), {"weight": CLASS_WEIGHTS}),
    "ce-several-labels": Loss(F.cross_entropy, (4, 2), torch.stack([LABELS, LABELS.flip(0)], 1)),
    "nll": Loss(F.nll_loss, (4,), LABELS),
    "nll-weighted": Loss(F.nll_loss, (4,), IGNORED, {"weight": CLASS_WEIGHTS}),
    "bce": Loss(F.binary_cross_entropy_with_logits, (3,), (rows(3, seed=3) > 0).double()),
    "bce-weighted": Loss(
        F.binary_cross_entropy_with_logits,
        (3,),
        (rows(3, seed=3) > 0).double(),
        {
            "pos_weight": torch.tensor([1.0, 3.0, 0.5]).double(),
            "weight": torch.tensor([0.1, 1.0, 2.0]).double(),
        },
    ),
    "bce-vector": Loss(F.binary_cross_entropy_with_logits, (), (rows(seed=3) > 0).double()),
    "mse": Loss(F.mse_loss, (3,), rows(3, seed=4)),
    "mse-vector": Loss(F.mse_loss, (), rows(seed=4)),
    "module": Loss(torch.nn.CrossEntropyLoss(weight=CLASS_WEIGHTS, ignore_index=1), (4,), LABELS),
    "partial": Loss(functools.partial(F.nll_loss, weight=CLASS_WEIGHTS), (4,), LABELS),
    "focal": Loss(focal, (4,), LABELS),
    "huber": Loss(F.huber_loss, (3,), rows(3, seed=4), {"delta": 0.5}),
    "gaussian": Loss(F.gaussian_nll_loss, (3,), (rows(3, seed=4), rows(3, seed=5).square() + 1)),
    "triplet": Loss(torch.nn.TripletMarginLoss(margin=0.5), (3,), (rows(3, seed=4), rows(3, seed=5))),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_of_one_device(name, mask_name, reduction, world_size):
    loss, mask = LOSSES[name], MASKS[mask_name]
    outputs = rows(*loss.shape)
    alone = outputs.clone().requires_grad_()
    chosen = slice(None) if mask is None else mask
    expected = loss.whole(alone, chosen, reduction)
    expected.backward()

    def rank(comm):
        return *loss.on_rank(comm, outputs, mask=mask, reduction=reduction), comm.owned_ids

    results = on_ranks(world_size, rank)
    for value, gradient, owned in results:
        assert value.item() == results[0][0].item()  # the same bits
        torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(gradient, alone.grad[owned], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", LOSSES)
def test_averaging_gradients_is_made_up_for(name):
    """With ddp=True the value stays, and the gradient is multiplied by what averaging divides by."""
    loss = LOSSES[name]

    def rank(comm):
        return [loss.on_rank(comm, rows(*loss.shape), ddp=ddp) for ddp in (False, True)]

    for (summed, gradient), (averaged, larger) in on_ranks(3, rank):
        assert averaged.equal(summed)
        torch.testing.assert_close(larger, 3 * gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_masked_rows_may_hold_anything(name):
    loss = LOSSES[name]
    mask = torch.arange(NUM_NODES) % 2 == 0
    outputs = torch.where(mask.view(-1, *[1] * len(loss.shape)), rows(*loss.shape), torch.nan)
    targets = [each.clone() for each in loss.others]
    for each in targets:
        each[~mask] = torch.nan if each.is_floating_point() else -1

    def rank(comm):
        return *loss.on_rank(comm, outputs, targets, mask), mask[comm.owned_ids]

    for value, gradient, counts in on_ranks(2, rank):
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert (gradient[~counts] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dtype_is_that_of_the_outputs(dtype):
    def rank(comm):
        return LOSSES["ce"].on_rank(comm, rows(4).to(dtype))

    expected = F.cross_entropy(rows(4).to(dtype).float(), LABELS)
    for value, gradient in on_ranks(2, rank):
        assert value.dtype == gradient.dtype == dtype
        torch.testing.assert_close(value.float(), expected, rtol=1e-2, atol=1e-2)


def test_a_mean_over_rows_alone():
    loss, outputs = torch.nn.KLDivLoss(reduction="batchmean"), rows(4)
    expected = loss(outputs[MASKS["some"]], outputs[MASKS["some"]].softmax(1))

    def rank(comm):
        own = outputs[comm.owned_ids]
        return dgcl.nn.loss(loss)(own, own.softmax(1), MASKS["some"][comm.owned_ids])

    assert all(value.isclose(expected) for value in on_ranks(3, rank))


@pytest.mark.parametrize("settings", [{"reduction": "sum"}, {"ddp": True}, {"on_every_rank": True}])
def test_other_settings_on_one_rank_are_an_error_on_all(settings):
    def rank(comm):
        x, mine = torch.ones(comm.num_owned), settings if comm.rank else {}
        sums = "on_every_rank" in settings
        with pytest.raises(DisagreementError, match=next(iter(settings))):
            dgcl.nn.global_sum(x, **mine) if sums else dgcl.nn.loss(F.mse_loss, **mine)(x, x)

    on_ranks(3, rank)


@named(
    "call, message",
    {
        "none": (
            lambda x: dgcl.nn.loss(F.mse_loss, reduction="none")(x, x),
            "reduction must be one of mean, sum",
        ),
        "shape": (lambda x: dgcl.nn.loss(F.mse_loss)(x, x[:, :1]), "targets must have the outputs' shape"),
        "rows": (lambda x: dgcl.nn.loss(F.cross_entropy)(x, LABELS[:3]), "labels must have a row for each"),
        "index-mask": (lambda x: dgcl.nn.loss(F.mse_loss)(x, x, torch.arange(2)), "mask must be bool"),
        "scalar": (
            lambda x: dgcl.nn.loss(lambda a, b: (a - b).square().mean())(x, x),
            "function must give a loss for each row",
        ),
        "a column against a vector": (
            lambda x: dgcl.nn.loss(lambda a, b: (a - b).square())(x[:, :1], x[:, 0]),
            "targets must have the outputs' shape",
        ),
        "mask": (
            lambda x: dgcl.nn.loss(F.mse_loss)(x, x, torch.ones(3).bool()),
            r"mask must be bool with shape \(23,\)",
        ),
    },
)
def test_refuses(call, message):
    def rank(comm):
        with pytest.raises(ValueError, match=message):
            call(rows(4))

    on_ranks(1, rank)
