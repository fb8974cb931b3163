"""Numbers of vertices that functions of PyG's layers read: those of sources are a rank's own."""

from __future__ import annotations

import inspect

_NUMBERS = {"edge_index", "edge_index_j", "size", "size_j"}


def numbers_read(kind: type) -> set[str]:
    """Arguments of a ``MessagePassing``'s own functions that number sources; of other classes none."""
    functions = [
        value
        for base in kind.__mro__
        if base.__name__ != "MessagePassing" and "MessagePassing" in (each.__name__ for each in base.__mro__)
        for name, value in vars(base).items()
        if name in ("message", "aggregate", "update", "edge_update")
    ]
    return {name for each in functions for name in inspect.signature(each).parameters.keys() & _NUMBERS}
