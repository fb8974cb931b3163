"""A base class of objects bound to one process: a copy is the object itself, and pickling raises.

Models hold communicators (``dgcl.nn.BatchNorm(width, comm=comm)``), and programs copy and save models. A real copy
would share the original's open files, and close them when it is deleted.

Called by `dgcl/communicator` and `dgcl/offload/offload`. Free to change while a model is copied with its communicator
shared, and the error of pickling one says to save the model's state (`tests/dgcl/nn/test_copies_of_models.py`).
"""

from typing import Any, NoReturn, Self


class Handle:
    """Copies of an object that holds one hold the same one; pickling it is refused, with a way out."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} belongs to this process and its peers and cannot be pickled; of a model that"
            " holds one save model.state_dict()"
        )
