"""Subclasses that modules get while they stay the same objects: a forward of ours around their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module

from dgcl.distributed.functional_dropout import dropping, own_functions
from dgcl.distributed.home import Home, refuse_script


class Distributed:
    """Comes before the class of a module that was distributed.

    Attributes:
        dgcl_home: Its communicator.
        dgcl_hooks: Functions that the framework calls, and no script does.
        dgcl_root: It is the model itself, or a module of the user's, whose calls of torch are seen where a script calls
            it; None: a layer that is PyG's in all parts, whose calls need not be.
        dgcl_refused: Why it cannot be made exact in training.
    """

    dgcl_base: type
    dgcl_kind: Callable[[type], type]
    dgcl_calls_dropout: bool
    dgcl_home: Home
    dgcl_hooks: frozenset[str] = frozenset()
    dgcl_root: bool | None = False
    dgcl_refused: str = ""

    __prepare_scriptable__ = refuse_script

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        if self.dgcl_refused and self.training:  # type: ignore[attr-defined]
            raise ValueError(
                f"the model was distributed in evaluation, and cannot be trained: {self.dgcl_refused}"
            )
        at_root = not torch.compiler.is_compiling() or self.training  # type: ignore[attr-defined]
        intercept = (self.dgcl_calls_dropout and self.dgcl_may_drop) or (self.dgcl_root and at_root)
        return self.dgcl_home.run(super().forward, intercept, *args, **kwargs)  # type: ignore[misc]

    @property
    def dgcl_may_drop(self) -> bool:
        """Whether its functions that call dropout may drop something; of classes of the user's it is not known."""
        known = self.dgcl_base.__module__.startswith("torch_geometric.")
        return not known or bool(self.training and getattr(self, "dropout", 1) != 0)  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        kind = type(self)
        return _new, (kind.dgcl_kind, kind.dgcl_base), self.__getstate__()


@functools.cache
def subclass(kind: Callable[[type], type], base: type) -> type:
    """The class that ``kind`` makes of a module's class; pickles name both."""
    result: type[Distributed] = kind(base)
    result.dgcl_base, result.dgcl_kind = base, staticmethod(kind)  # type: ignore[attr-defined]
    # Parts of a forward, which are recomputed by themselves, or which scripts call: encode, decode.
    parts = {*dropping(base)}
    result.dgcl_calls_dropout = "forward" in parts
    if not hasattr(base, "training_step"):  # of Lightning, which calls the optimizer
        parts |= {name for name in own_functions(base).keys() - result.dgcl_hooks if name[0] != "_"}
    for name in parts - {"forward", "__init__", "collect"}:  # PyG generates a collect for each of its layers
        setattr(result, name, _intercepted(getattr(result, name)))
    result.__module__, result.__doc__ = __name__, base.__doc__
    return result


def _intercepted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(self: Distributed, *args: Any, **kwargs: Any) -> Any:
        return self.dgcl_home.run(function, self.dgcl_may_drop, self, *args, **kwargs)

    return run


def become(module: Module, kind: Callable[[type], type], home: Home) -> None:
    """Give a module that class."""
    module.__class__ = subclass(kind, type(module))  # type: ignore[assignment, arg-type]
    module.dgcl_home = home  # type: ignore[assignment]


def plain(base: type) -> type:
    """A class whose forward alone is ours."""
    return type(f"Distributed{base.__name__}", (Distributed, base), {})


def _new(kind: Callable[[type], type], base: type) -> Any:
    return object.__new__(subclass(kind, base))
