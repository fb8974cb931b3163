"""Runs a function on rank 0, and gives each rank its entry of the result, or the error.

Errors arrive on the other ranks as TypeError, ValueError, MemoryError, OSError or RuntimeError, with "(on rank 0)"
behind the text: no other kind is sure to be unpickled there. Meanwhile ranks that die are noticed.

Called by `dgcl/build`, `dgcl/cli/bench`, `dgcl/prepare/local_edges`, `dgcl/calibration/timing` and
`dgcl/offload/arranging`. Free to change while a mistake on rank 0 is raised on all ranks and no other waits for ever
(`tests/dgcl/test_build.py`).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from dgcl.errors import CommError
from dgcl.ranks.control import Control

T = TypeVar("T")


def from_rank_0(
    control: Control, make: Callable[[], Sequence[T]], meanwhile: Callable[[], None] = lambda: None
) -> T:
    """This rank's entry of what rank 0 makes, one for each rank. Collective.

    Args:
        control: The control plane.
        make: Called on rank 0 alone; what it raises is raised on every rank.
        meanwhile: Called on the others.
    """
    answers: list[T | Exception] | None = None
    if control.rank == 0:
        try:
            answers = list(control.unless_lost(make))
        except CommError:  # a rank is gone, and all others know it
            raise
        except Exception as error:  # every rank must hear of it, whatever it is
            # only plain kinds travel between processes
            kind = next(
                k
                for k in (TypeError, ValueError, MemoryError, OSError, RuntimeError)
                if isinstance(error, k) or k is RuntimeError
            )
            control.scatter([kind(f"{error} (on rank 0)")] * control.world_size)
            raise
    else:
        meanwhile()
    answer = control.scatter(answers)
    if isinstance(answer, Exception):
        raise answer
    return cast("T", answer)
