"""A base class for objects that are bound to this process and cannot be copied or saved.

Models hold communicators (``dgcl.nn.BatchNorm(width, comm=comm)``), and programs copy and save models. A copy that
shared the original's open files would close them when it is deleted.

Called by `dgcl/communicator` and `dgcl/offload/offload`. Free to change while all ranks agree, and one that
fails is named by the others in time (`tests/dgcl/ranks/`).
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
