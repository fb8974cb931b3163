"""Numbers of vertices that functions of PyG's layers read: those of sources are a rank's own."""

import inspect

_NUMBERS = {"edge_index", "edge_index_j", "size", "size_j"}


def numbers_read(kind: type) -> set[str]:
    """Arguments of a ``MessagePassing``'s functions that number sources; of other classes none."""
    functions = [
        getattr(kind, name)
        for name in ("message", "aggregate", "update", "edge_update")
        if "MessagePassing" in (each.__name__ for each in kind.__mro__)
    ]
    return {name for each in functions for name in inspect.signature(each).parameters.keys() & _NUMBERS}
