"""What :mod:`tests.dgcl.transport.test_crossed_calls` shares with other tests."""

import threading

from dgcl.communicator import Communicator
from tests.support.plans import make_world, random_world
from tests.support.ranks import join, local_ids

PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)
OTHER = random_world(83, 2, "direct")


def both(timeout: float) -> tuple[Communicator, Communicator]:
    return join(PAIR.shares(), timeout), join(OTHER.shares(), timeout)


def expand(comm: Communicator) -> bool:
    return bool((comm.expand(comm.owned_ids) == local_ids(comm)).all())


def count_looks(comm: Communicator, number: int, done: threading.Event):
    """Set ``done`` when the communicator has waited so long that it looked around ``number`` times."""
    looked: list[None] = []
    look = comm.transport.runtime._check_failures

    def count(*rest: object):
        look(*rest)  # type: ignore[arg-type]
        looked.append(None)
        if len(looked) == number:
            done.set()

    comm.transport.runtime._check_failures = count  # type: ignore[method-assign, assignment]
