"""Compares the outputs of a distributed model's first call with those of the original model on one device.

Each rank runs a copy of the model on all rows. Where ranks are processes the copy leaves random generators alone and
prints nothing. What cannot be copied or run so is logged, and not compared. Left out, too: calls under
``torch.compile``, layers of PyG that drop elements by themselves, training where ranks are threads, and, unless asked
for, graphs above ``LARGEST``.
Called by `distribute`. Free to change while a model with other outputs raises AssertionError, ``check=False`` lets it
pass, and later calls are not compared (`tests/dgcl/rows/test_own_ranks.py`, "the first call").
"""

import contextlib
import copy
import io
import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from dgcl.distributed.adapters import Adapter
from dgcl.distributed.attention import drops
from dgcl.ranks.context import context
from dgcl.rows.own_tensors import collected
from dgcl.rows.tensor import OneDevice, mapped, rows_in, tensors_in

_log = logging.getLogger("dgcl")

#: Vertices and edges times layers up to which the comparison is made unasked.
LARGEST = 2_000_000


class FirstCall:
    """A hook before a model's forward, which compares the outputs of its first call; copies of a model have their own.

    Raises:
        AssertionError: On every rank: they differ.
    """

    done = False

    def __call__(self, module: Module, args: Any, kwargs: Any) -> None:
        """Run the model as it was, and let the outputs of this call be compared with it."""
        if self.done or torch.compiler.is_compiling():
            return
        self.done = True
        first = next(rows_in(args, kwargs), None)
        comm = context.communicator if first is None else first._space.comm
        layers = [each for each in module.modules() if isinstance(each, Adapter)]
        # Masks of layers are by edge, and one device has others; ranks that are threads share a generator.
        if comm is None or any(map(drops, layers)) or (comm.control.threads_of_ranks > 1 and module.training):
            return
        opened = [
            collected(each) if hasattr(each, "stores") or hasattr(each, "whole") else each for each in args
        ]
        own, expected = mapped(_whole, (opened, kwargs)), list[Any]()
        try:
            with contextlib.ExitStack() as stack:
                if comm.control.threads_of_ranks == 1:  # both are the process's
                    stack.enter_context(torch.random.fork_rng([]))
                    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                alone: Any = copy.deepcopy(module)
                for each in alone.modules():
                    if isinstance(each, Adapter):
                        each.__class__ = type(each).dgcl_base
                expected.append(alone(*own[0], **own[1]))
        except Exception as error:
            _log.info("the first call is not compared with one device: %s", error)

        def after(module: Module, args: Any, out: Any) -> None:
            handle.remove()
            with comm.collective("check"):
                compared = all(comm.control.exchange(len(expected)))
            for one, other in zip(tensors_in((out,)), tensors_in(expected), strict=False) if compared else ():
                _compare(collected(one) if isinstance(one, OneDevice) else one, other, type(module).__name__)

        handle = module.register_forward_hook(after)


def _whole(value: Tensor) -> Tensor:
    rows = collected(value) if isinstance(value, OneDevice) else value
    return rows.detach().clone().requires_grad_(value.requires_grad)  # type: ignore[no-any-return]


def _compare(one: Tensor, other: Tensor, name: str) -> None:
    one, other = one.detach(), other.detach()
    if not other.is_floating_point() or not other.numel():
        return
    limit = 1e-6 if other.dtype == torch.float64 else 1e-3
    size = max(1.0, float(other.nan_to_num(0, 0, 0).abs().max()))
    if one.shape != other.shape or not torch.isclose(one, other, 0, limit * size, True).all():
        raise AssertionError(
            f"{name} does not give on ranks what it gives on one device: the first call differs by up to"
            f" {float((one - other).abs().max()) if one.shape == other.shape else 'another shape'}. Please report it;"
            " dgcl.distribute(model, check=False) goes on without this comparison"
        )
