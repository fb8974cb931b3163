"""One call of a function of torch with ``Rows`` among its arguments, as every rule takes it.

It binds arguments to names where a function of C++ has no signature, and tells by its name whether the function changes
its first argument in place (``add_``, ``__iadd__``, ``__setitem__``).
Called by `apply_rule`, `rule_table`, `indexing`, `rowwise`, `gathering` and others. Free to change while positional and
named arguments mean the same, and calls in place change what one device changes (`tests/dgcl/rows/test_sweep.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dgcl.rows.tensor import Rows, mapped


@dataclass
class Call:
    """A function of torch and its arguments.

    Attributes:
        func: The function.
        name: Its name, or that of the property that it reads.
        args, kwargs: Its arguments.
        first: The first rows among them.
    """

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: Rows

    def bound(self, names: str, **defaults: Any) -> list[Any]:
        """The arguments of these names, in the order of positions; None for one that is missing."""
        arguments = defaults | dict(zip(names.split(), self.args, strict=False)) | self.kwargs
        return [arguments.get(name) for name in names.split()]

    def of(self, own: Any) -> Call:
        """The same function of another first argument."""
        return replace(self, args=(own, *self.args[1:]))

    def mapped(self, function: Callable[[Tensor], Any]) -> Any:
        """The function of its arguments, each tensor among them replaced."""
        return self.func(*mapped(function, self.args), **mapped(function, self.kwargs))

    @property
    def writes(self) -> bool:
        """Whether the function changes its first argument in place: ``add_``, ``__iadd__``, ``__setitem__``."""
        name = self.name
        if name.startswith("__"):
            return name == "__setitem__" or (name[2] == "i" and name[2:-2] in _IN_PLACE)
        return name.endswith("_")


_IN_PLACE = set(
    str.split("""iadd isub imul itruediv ifloordiv ipow imod iand ior ixor ilshift irshift idiv imatmul""")
)
