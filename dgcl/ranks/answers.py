"""Answers that rank 0 has for every rank, or the error that it met.

Called by `dgcl/`, `dgcl/calibration/` and 3 more folders. Free to change while all ranks agree, and one
that fails is named by the others in time (`tests/dgcl/ranks/`).
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
