"""Makes the second computation of a chunk equal the first: the same random numbers and parameters.

The state of torch's generators is kept for each chunk that drew numbers. Ranks that are threads share a generator, so a
lock is held. Hooks of parameters are for the gradients of all chunks together: those of one chunk pass them by.
Called by `layer` and `rehearsal`. Free to change while torch's dropout drops the same in the backward, and parameters
that are shared, or have hooks, get the gradients of a layer in one piece (`tests/dgcl/offload/test_layer.py`).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

#: Held while a chunk is computed where ranks are threads: they share torch's generator, whose state is kept by chunk.
_generator = threading.Lock()


class RandomNumbers:
    """The states of torch's generators from which chunks drew, if they did.

    Args:
        shared: Other ranks draw from the same generators, as threads.
        device: Where chunks are computed.
    """

    def __init__(self, shared: bool, device: torch.device) -> None:
        self._lock: AbstractContextManager[Any] = _generator if shared else nullcontext()
        self._states: dict[int, tuple[Tensor, ...]] = {}
        self._device = device

    def _state(self) -> tuple[Tensor, ...]:
        of_gpu = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return torch.get_rng_state(), *of_gpu

    def _set(self, state: tuple[Tensor, ...]) -> None:
        torch.set_rng_state(state[0])
        for of_gpu in state[1:]:
            torch.cuda.set_rng_state(of_gpu, self._device)

    @contextmanager
    def first(self, chunk: int) -> Iterator[None]:
        """Note what a chunk draws inside."""
        with self._lock:
            before = self._state()
            yield
            if not all(map(torch.equal, self._state(), before)):
                self._states[chunk] = before

    @contextmanager
    def again(self, chunk: int) -> Iterator[None]:
        """Let it draw the same inside; afterwards the generator is where it was."""
        devices = [self._device] if self._device.type == "cuda" else []
        with self._lock, torch.random.fork_rng(devices):
            if chunk in self._states:
                self._set(self._states[chunk])
            yield


@contextmanager
def in_place_of(module: Any, parameters: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Let a module compute with other tensors in the place of its parameters, wherever it has them.

    ``torch.func.functional_call`` does not put those of a module back that stands in two places (torch 2.13).
    """
    others = {id(parameter): other for parameter, other in parameters if other is not parameter}
    places = [
        (part, name, parameter)
        for part in (module.modules() if others else ())
        for name, parameter in part._parameters.items()
        if id(parameter) in others
    ]
    try:
        for part, name, parameter in places:
            part._parameters[name] = others[id(parameter)]
        yield
    finally:
        for part, name, parameter in places:
            part._parameters[name] = parameter


@contextmanager
def without_hooks(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Let gradients of a chunk pass by the hooks of parameters, which are for those of all chunks together.

    A function reads its parameters where they are: nothing can be put in their place, as in a module's.
    """
    hooks = [parameter._backward_hooks or {} for parameter in parameters]
    taken = [dict(each) for each in hooks]
    kept = [
        (each, each.grad) for each in parameters if each.retains_grad
    ]  # torch would add to it in each chunk
    try:
        for each in hooks:
            each.clear()
        yield
    finally:
        for each, before in zip(hooks, taken, strict=True):
            each.update(before)
        for parameter, grad in kept:
            parameter.grad = grad
