"""Gloo groups of our own, of the ranks of a group of the user's.

``torch.distributed.new_group`` with ``use_local_synchronization``, which is what a part of the ranks needs, names a
group by how many groups a process is in at that moment. Members that are in different numbers of others never meet,
and a group that is made when another was destroyed gets the name of that one, and its addresses. Of groups of all
ranks the same holds once one attempt to make such a group has failed on some.
So a group is made here, on a part of the default store that no other group has; it is reached by its methods ``send``
and ``recv`` alone, and ends when nothing refers to it any more.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from dgcl.ranks.rendezvous import meet

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

T = TypeVar("T")


def next_store(
    ranks: Sequence[int],
    rank: int,
    purpose: str,
    timeout: float,
    given_up: threading.Event,
    within: Store | None = None,
) -> Store | None:
    """What the next group of these ranks has of the default store for itself; None where torch does not show it.
    Collective: it is the number of a meeting of theirs (:mod:`dgcl.ranks.rendezvous`).

    Args:
        ranks: Global ranks of the members.
        rank: This process's place among them.
        within: What an earlier group of theirs has; who has another of the same ranks is not met. None: where all
            groups of these ranks meet first.
        purpose, timeout, given_up: As for :func:`dgcl.ranks.rendezvous.meet`, which says what is raised.
    """
    import torch.distributed as dist

    default_store = getattr(dist.distributed_c10d, "_get_default_store", None)
    if default_store is None:
        return None
    members = hashlib.sha256("_".join(map(str, ranks)).encode()).hexdigest()[:16]
    store = dist.PrefixStore(f"dgcl/{members}", default_store() if within is None else within)
    number = meet(store, rank, len(ranks), purpose, timeout, given_up)
    return dist.PrefixStore(f"meeting {number}", store)


def make_group(
    ranks: Sequence[int], rank: int, store: Store | None, timeout: float, *, is_part: bool
) -> ProcessGroup:
    """A Gloo group of these ranks. Collective over them, and only them.

    Args:
        ranks, rank: As for :func:`next_store`.
        store: What that gave.
        timeout: Seconds that operations may take.
        is_part: Whether ranks of the default group may be missing, where torch must make the group.

    Raises:
        RuntimeError: A rank has died, or has not come within the timeout.
    """
    import torch.distributed as dist

    limit = timedelta(seconds=timeout)
    if store is not None:
        connecting = dist.PrefixStore("connecting", store)
        made: Any = dist.ProcessGroupGloo(connecting, rank, len(ranks), limit)
        return made  # type: ignore[no-any-return]
    group: ProcessGroup = dist.new_group(
        list(ranks), backend="gloo", timeout=limit, use_local_synchronization=is_part
    )
    return group


def in_time(step: Callable[[], T], seconds: float) -> T:
    """What a step returns that asks the ranks' store, which has no deadline of its own for some questions: on a link
    that is cut the answer would be waited for as long as TCP tries.

    Raises:
        RuntimeError: There is no answer within this time.
    """
    answers: list[tuple[T | None, Exception | None]] = []

    def run() -> None:
        try:
            answers.append((step(), None))
        except Exception as error:  # whatever it is, the caller shall see it
            answers.append((None, error))

    thread = threading.Thread(target=run, name="dgcl meeting", daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise RuntimeError(f"no answer within {seconds:g} s")
    value, error = answers[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def forget_group(group: ProcessGroup) -> None:
    """Let torch forget a group, if it knows it; its connections close when the caller has forgotten it, too."""
    import torch.distributed as dist

    if dist.is_initialized():  # the user may have destroyed all groups
        with suppress(RuntimeError, ValueError, AssertionError):
            dist.destroy_process_group(group)
