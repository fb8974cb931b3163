"""Gloo groups of our own, of the ranks of a group of the user's.

``torch.distributed.new_group`` with ``use_local_synchronization``, which a part of the ranks needs, names a group by
how many groups a process is in at that moment. Members that are in different numbers of others never meet, and a group
that is made after another was destroyed gets the name of that one, and its addresses. The same holds for groups of all
ranks once one attempt to make such a group has failed on some.

So a group is made here, on a part of the default store that no other group has. torch does not know it: it is reached
by its methods ``send`` and ``recv`` alone, and ends when nothing refers to it any more.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dgcl.ranks.rendezvous import meet

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store


def next_store(
    ranks: Sequence[int],
    rank: int,
    purpose: str,
    timeout: float,
    given_up: threading.Event,
    within: Store | None = None,
) -> Store:
    """What the next group of these ranks has of the default store for itself. Collective.

    Its name is the number of a rendezvous of the ranks (:mod:`dgcl.ranks.rendezvous`).

    Args:
        ranks: Global ranks of the members.
        rank: This process's place among them.
        within: The part that an earlier group of theirs has: only ranks that have the same one meet there. None: where
            all groups of these ranks meet first.
        purpose, timeout, given_up: As for :func:`dgcl.ranks.rendezvous.meet`, which says what is raised.
    """
    import torch.distributed as dist

    members = hashlib.sha256("_".join(map(str, ranks)).encode()).hexdigest()[:16]
    outer = dist.distributed_c10d._get_default_store() if within is None else within
    store = dist.PrefixStore(f"dgcl/{members}", outer)
    number = meet(store, rank, len(ranks), purpose, timeout, given_up)
    return dist.PrefixStore(f"round {number}", store)


def make_group(store: Store, rank: int, world_size: int, timeout: float) -> ProcessGroup:
    """A Gloo group of the ranks that have this store. Collective over them, and only them.

    Args:
        store: What :func:`next_store` gave.
        rank, world_size: This process's place among them, and their number.
        timeout: Seconds that operations may take.

    Raises:
        RuntimeError: A rank has died, or has not come within the timeout.
    """
    import torch.distributed as dist

    connecting = dist.PrefixStore("connecting", store)
    group: Any = dist.ProcessGroupGloo(connecting, rank, world_size, timedelta(seconds=timeout))
    return group  # type: ignore[no-any-return]
