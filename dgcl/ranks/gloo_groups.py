"""Makes Gloo groups, apart from torch's list of groups, from the ranks of a group of the user's.

``torch.distributed.new_group`` will not do: it names a group of some ranks by how many groups a process is in, so
members in different numbers of others never meet, and a name may come again with the old addresses. Here a group's name
is the number of a `rendezvous` of its ranks, and it ends when nothing refers to it.

Called by `group_control`, `launcher`, `dgcl/api` and `dgcl/nn/gradients`. Free to change while groups of other ranks do
not mix, and ranks whose attempt failed can meet again (`tests/dgcl/ranks/test_rendezvous.py`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from dgcl.errors import CommError, PeerLostError
from dgcl.ranks.deadlines import in_time
from dgcl.ranks.environment import FIRST_WAIT, Launched
from dgcl.ranks.rendezvous import IN_VAIN, Waiting, another_client, meet
from dgcl.topology.checks import shown

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

# ``new_group`` with ``use_local_synchronization``, which a part of the ranks needs, names a group by how many groups a
# process is in at that moment. Members that are in different numbers of others never meet, and a group that is made
# after another was destroyed gets the name of that one, and its addresses. The same holds for groups of all ranks once
# one attempt to make such a group has failed on some.

T = TypeVar("T")

_GRACE = 0.9  # seconds beyond a deadline, in which torch may say itself what is wrong
_PAUSE = 0.1  # seconds between two attempts to reach a store


# So a group is made here, on a part of the default store that no other group has. torch does not know it: it is
# reached by its methods ``send`` and ``recv`` alone, and ends when nothing refers to it any more.


def as_group(group: Any, name: str) -> ProcessGroup:
    """A process group, or that of one dimension of a DeviceMesh; the argument is called ``name``.

    Raises:
        TypeError, ValueError: It is neither, or a mesh of several dimensions.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f'{name} must be one dimension of a mesh, as mesh["graph"] (got one of {group.ndim} dimensions,'
                f" {group.mesh_dim_names})"
            )
        return group.get_group()
    if not isinstance(group, (int, dist.ProcessGroup)):  # an int: no member
        raise TypeError(
            f"{name} must be a torch.distributed.ProcessGroup, one dimension of a DeviceMesh, or None (got"
            f" {shown(group)})"
        )
    return group  # type: ignore[return-value]


def next_store(
    ranks: Sequence[int],
    rank: int,
    purpose: str,
    timeout: float,
    waiting: Waiting,
    within: Store | None = None,
) -> Store:
    """What the next group of these ranks has of the default store for itself. Collective.

    Its name is the number of a rendezvous of the ranks (:mod:`dgcl.ranks.rendezvous`).

    Args:
        ranks: Global ranks of the members.
        rank: This process's place among them.
        within: The part that an earlier group of theirs has: only ranks that have the same one meet there. None: where
            all groups of these ranks meet first.
        purpose, timeout, waiting: As for :func:`dgcl.ranks.rendezvous.meet`, which says what is raised.
    """
    import torch.distributed as dist

    members = hashlib.sha256("_".join(map(str, ranks)).encode()).hexdigest()[:16]
    from dgcl.ranks.torch_private import default_store

    outer = default_store() if within is None else within
    store = dist.PrefixStore(f"dgcl/{members}", outer)
    number = meet(store, rank, len(ranks), purpose, timeout, waiting)
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

    connecting = dist.PrefixStore("connecting", another_client(store))
    group: Any = dist.ProcessGroupGloo(connecting, rank, world_size, timedelta(seconds=timeout))
    return group  # type: ignore[no-any-return]


def connected(connect: Callable[[Waiting], T], rank: int, world_size: int, purpose: str, timeout: float) -> T:
    """What ``connect`` returns, or its error at most three seconds after the timeout.

    Args:
        connect: Meets the other ranks; its argument is set once nobody waits for it any more.
        rank, world_size, purpose, timeout: For messages; seconds.

    Raises:
        CommError: Ranks have not come in time, or cannot be reached.
    """
    waiting = Waiting()
    they = f"rank {rank}: the {world_size} ranks cannot connect to each other"
    try:
        value = in_time(lambda: connect(waiting), timeout + _GRACE, waiting.check)
    except (RuntimeError, TimeoutError) as error:
        kind, reason = type(error), str(error).split(". This is typically", 1)[0]
        if not isinstance(error, CommError) or reason == IN_VAIN:
            kind = PeerLostError
            said = waiting.silent() or waiting.reason()
            if said in ("", IN_VAIN):
                said = (
                    f"{reason}: one has died, or has not come to {purpose} within {timeout:g} s, or cannot be reached"
                    f" from rank {rank}"
                )
            reason = said
        if waiting.round.number:  # no others can take this rank's place any more
            waiting.post(reason)
        waiting.end()
        raise kind(f"{they}: {reason}") from None
    except BaseException as error:
        waiting.post(f"rank {rank} was stopped by {type(error).__name__} in {purpose}")
        waiting.end()
        raise
    waiting.sign()
    return value


#: torch's store of this process, kept for a second attempt: rank 0 may serve it, on a port that is taken until it ends.
_torch_store: list[Store] = []


def default_backends(ranks_here: int) -> str:
    """The backends of torch's default group: Gloo, and NCCL on GPUs where each rank of this host has one."""
    import torch

    has_nccl = torch.distributed.is_nccl_available() and torch.cuda.device_count() >= ranks_here
    return "cpu:gloo,cuda:nccl" if has_nccl else "gloo"


def make_default_group(job: Launched, timeout: float) -> None:
    """Make torch's default group of a job's ranks. Collective.

    As ``torch.distributed.init_process_group``, but within the timeout, and naming who has not come. The
    group's own operations have the same timeout.

    Raises:
        CommError: Ranks have not come in time, or cannot be reached.
        ValueError: A variable is missing or wrong.
    """
    import torch.distributed as dist

    from dgcl.ranks.torch_private import set_timeout

    rank, world_size = job.rank, job.size
    within = min(timeout, FIRST_WAIT) if job.is_guess else timeout
    deadline = time.monotonic() + within
    host, port = job.address()

    def left() -> float:
        return max(deadline - time.monotonic(), 0.01)

    def connect(waiting: Waiting) -> None:
        if not _torch_store:
            _torch_store.append(_connect_store(host, port, rank, deadline, waiting))
        store = _torch_store[0]
        number = meet(dist.PrefixStore("dgcl", store), rank, world_size, "dgcl.init", left(), waiting)
        # A part of the store for each attempt: addresses of one that failed would be taken for this one's.
        fresh = dist.PrefixStore(f"default group {number}", another_client(store))
        limit = timedelta(seconds=left())
        backends = default_backends(job.local_size or world_size)
        dist.init_process_group(backends, store=fresh, rank=rank, world_size=world_size, timeout=limit)
        set_timeout(dist.group.WORLD, timedelta(seconds=timeout))

    try:
        connected(connect, rank, world_size, "dgcl.init", within)
    except CommError as error:
        raise type(error)(f"{error}{job.way_out}") from None


def _listen_on_loopback(host: str, port: int) -> int | None:
    """A socket for a store of this machine alone: torch itself listens on all interfaces, whatever the address.

    None: the address is another one, or the port is taken, which torch shares within a process or explains.
    """
    with suppress(OSError):
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(address[0]).is_loopback:
            return socket.create_server(address[:2], family=family).detach()
    return None


def _connect_store(host: str, port: int, rank: int, deadline: float, waiting: Waiting) -> Store:
    """The store by which ranks meet, served by torchrun or else by rank 0.

    As torch connects it, but rank 0 does not wait for the others here.
    """
    import torch
    import torch.distributed as dist

    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = rank == 0 and not of_agent
    while not serves:  # torch itself would try for longer than it is told to
        try:
            socket.create_connection((host, port), max(deadline - time.monotonic(), 0.01)).close()
            break
        except OSError as error:
            if time.monotonic() + _PAUSE > deadline or waiting.wait(_PAUSE):
                raise CommError(
                    f"{'torchrun' if of_agent else 'rank 0'}, which keeps the ranks' store at {host}:{port}, cannot be"
                    f" reached: {error}"
                ) from None
    limit = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
    store: Store = dist.TCPStore(
        host,
        port,
        is_master=serves,
        timeout=limit,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=_listen_on_loopback(host, port) if serves else None,
        use_libuv=torch.__version__ >= "2.8",  # before, it takes no socket
    )
    if of_agent:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"/worker/attempt_{attempt}", store)
    return store
