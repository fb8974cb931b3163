"""Public functions that act on this thread's communicator, such as ``dgcl.fetch`` and ``dgcl.graph_allgather``.

Those on rows also take a communicator; without one they use what this thread built last. ``init`` imports here what
later calls need, so that no peer waits for a rank's imports.
Called by users, through `dgcl/__init__`. Free to change while functions use the communicator built last in their thread
and name what to call first (`tests/dgcl/test_communicator.py`), mistakes have their messages
(`tests/dgcl/test_messages.py`), and ``init`` reads launchers' variables (`tests/dgcl/ranks/test_environment.py`).
"""

from __future__ import annotations

import atexit
import logging
import os
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dgcl.autograd.pending import PendingRows
from dgcl.communicator import Communicator, given_or_current
from dgcl.ranks.context import context
from dgcl.ranks.control import SingleControl
from dgcl.ranks.environment import launched
from dgcl.ranks.freed_memory import keep_freed_memory
from dgcl.ranks.gloo_groups import as_group, make_default_group
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.threads import report_crowding
from dgcl.topology.checks import check_flag, check_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_SETUP_TIMEOUT = 1800.0

_log = logging.getLogger("dgcl")


def init(
    group: ProcessGroup | DeviceMesh | None = None,
    *,
    timeout: float = _SETUP_TIMEOUT,
    keep_memory: bool = False,
    launcher: str | None = "auto",
) -> None:
    """Join the ranks. Collective over the group; once per thread that trains.

    Over time: with a ``group``, or where a default process group exists, it is joined, and a Gloo subgroup of
    our own is made for control messages. Without one, and under torchrun (``RANK`` and ``WORLD_SIZE`` are
    set), ``srun``, ``mpirun`` or another launcher with PMI's variables, a Gloo default group is made and destroyed
    at exit. Otherwise this process is a single rank and needs no group. A rank of :func:`dgcl.launch` is
    initialised already, and a second call without a group changes nothing, unless set-up has failed since: then
    the same ranks meet again.

    Args:
        group: The ranks that share the graph; None for the default group. Of a job with more axes this one's dimension
            of a ``DeviceMesh``: ``mesh["graph"]``.
        timeout: Seconds that ranks wait for each other during set-up (rank 0 partitions and plans meanwhile),
            1800 by default, and, of a default group that is made here, in its operations. Ranks that no torchrun has
            started come within 60.
        launcher: "auto", or None: whatever the environment says, this process is a job of one rank, as with
            ``DGCL_LAUNCHER=none``.
        keep_memory: Have this process keep the memory that it frees, up to twice as much as without; the kernel clears
            fewer pages, which is a quarter of an epoch with rows of tens of megabytes. Needs glibc; else it does
            nothing. Give it before rows are allocated; ranks of :func:`dgcl.launch` get it there.

    Raises:
        CommError: Ranks have not come in time; by their names.
        ValueError: The launcher's variables contradict each other, or do not say where rank 0 is.
    """
    import torch.distributed as dist

    import dgcl.build  # now, and not in a later call, where peers would wait for a rank that is stopped meanwhile
    import dgcl.transport.connect  # noqa: F401

    check_number(timeout, "timeout", positive=True)
    if check_flag(keep_memory, "keep_memory"):
        keep_freed_memory()
    ranks = None if group is None else as_group(group, "group")
    if context.control is not None and group is None:
        if isinstance(context.control, GroupControl) and context.control.is_closed:
            context.control = context.control.anew(timeout)
        return
    if group is None and not dist.is_initialized():
        job = launched(launcher)
        if job is None:
            context.control = SingleControl()
            return
        make_default_group(job, timeout)
        atexit.register(_destroy_default_group, os.getpid())
        if job.rank == 0:
            report_crowding(job.local_size or 1)
            if job.is_guess:
                _log.warning("dgcl.init: %d ranks, started by %s", job.size, job.launcher)
    context.control = GroupControl(ranks, timeout)


def _destroy_default_group(process: int) -> None:
    import torch.distributed as dist

    if os.getpid() != process:  # a fork has none of the group's threads, and would wait for them
        return
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """This rank, from 0; before :func:`init` 0.

    >>> if dgcl.rank() == 0:
    ...     torch.save(model.state_dict(), "model.pt")
    """
    return 0 if context.control is None else context.control.rank


def current_communicator() -> Communicator:
    """The communicator that this thread built last."""
    return context.require_communicator()


def dispatch_features(
    features: Tensor | ArrayLike | None, comm: Communicator | None = None, *, halo: bool = False
) -> Tensor:
    """This rank's rows of the graph's features; see :meth:`Communicator.dispatch_features`. Collective.

    Args:
        features: ``(num_nodes, *F)`` on rank 0 (others pass None) or on every rank; torch or numpy, any dtype.
        comm: The communicator; None for this thread's current one.
        halo: Return the halo rows as well, exchanged once: for an input that never changes.

    Returns:
        ``(num_owned, *F)``; with ``halo`` ``(num_owned + num_halo, *F)``.
    """
    if isinstance(features, Tensor):
        require_tensors(features=features)
    return given_or_current(comm).dispatch_features(features, halo=halo)


def fetch(
    rows: Tensor, ids: Tensor, comm: Communicator | None = None, *, node_type: str | None = None
) -> Tensor:
    """Fetch rows of any vertices of the graph from their owners, without a plan; ids may change in each call.

        >>> u, v = dgcl.fetch(h, pairs.flatten()).chunk(2)     # pairs (2, k) of global ids: links to be scored

    For pairs to score, negative samples, contrastive losses. What a layer reads each time is planned:
    :func:`graph_allgather`. Differentiable as often as needed; gradients of rows that are wanted several times, or by
    several ranks, are added in a fixed order. Collective: two small exchanges, and one of rows.

    Args:
        rows: ``(num_owned, *F)``.
        ids: ``(n,)`` int64 or int32 ids of vertices in the whole graph; n may differ by rank, and be 0.
        comm: The communicator; None for this thread's current one.
        node_type: Rows and ids are those of this type of vertices.

    Returns:
        ``(n, *F)``, row k of vertex ``ids[k]``.

    Raises:
        ValueError, TypeError: Ids that are none, or rows that are not alike; raised on every rank.
    """
    return given_or_current(comm).fetch(rows, ids, node_type)


def graph_allgather(rows: Tensor, comm: Communicator | None = None) -> Tensor:
    """Owned rows to owned and halo rows: the exchange before a layer's aggregation.

        >>> h = dgcl.graph_allgather(h)      # (num_owned, F) -> (num_owned + num_halo, F)
        >>> h = conv(block, (h, h[:num_owned]))

    Differentiable as often as needed; the backward sends gradients back along the same trees. Works under
    ``torch.compile``, activation checkpointing and ``torch.no_grad``. Collective: every rank calls it with
    the same trailing shape and dtype.

    Args:
        rows: ``(num_owned, *F)``, any dtype.
        comm: The communicator; None for this thread's current one.

    Raises:
        ValueError, TypeError, CommError: See :meth:`Communicator.expand`.
    """
    comm = given_or_current(comm)
    comm.require_neighbourhoods("graph_allgather")
    return comm.expand(rows)


def graph_allgather_async(rows: Tensor, comm: Communicator | None = None) -> PendingRows:
    """Start an exchange of halo rows; compute, then wait for them.

        >>> pending = dgcl.graph_allgather_async(h)          # (num_owned, F)
        >>> out = linear(h)                                  # what needs owned rows alone
        >>> halo = pending.wait()                            # (num_halo, F)

    ``comm.aggregator()`` sums owned rows meanwhile, in the backward, too. Collective; ``rows`` must not change, and no
    other call be made on the communicator, until ``wait()`` has returned.

    Args:
        rows: ``(num_owned, *F)``, any dtype.
        comm: The communicator; None for this thread's current one.

    Raises:
        ValueError, TypeError, CommError: See :meth:`Communicator.expand`.
    """
    comm = given_or_current(comm)
    comm.require_neighbourhoods("graph_allgather_async")
    return comm.expand_async(rows)


def collect(
    rows: Any,
    dst: int | None = 0,
    *,
    file: str | PathLike[str] | None = None,
    comm: Communicator | None = None,
) -> Any:
    """Owned rows of all ranks in global order; see :meth:`Communicator.collect`. Collective.

        >>> logits = dgcl.collect(model(x))              # (num_nodes, num_classes) on rank 0, None on others
        >>> dgcl.collect(model(x), file="logits.npy")    # or a file, which rank 0 writes piece by piece

    Args:
        rows: ``(num_owned, *F)``; or such rows by type of vertices, of a graph that was dispatched with types; or the
            ``Data``, ``HeteroData`` or graph of DGL that :func:`dispatch` gave, with tensors that were added to it.
        dst: The rank that gets them; None for every rank.
        file: Write them there as ``.npy`` instead of returning them.
        comm: The communicator; None for this thread's current one.

    Returns:
        ``(num_nodes, *F)`` on ``dst``, row v of vertex v; None elsewhere, and when written to a file. What
        :func:`dispatch` gave, and what was computed of it, comes to every rank: all rows of one device.
    """
    from dgcl.rows.own_tensors import collected, local
    from dgcl.rows.tensor import OneDevice

    if file is None and (isinstance(rows, OneDevice) or hasattr(rows, "stores") or hasattr(rows, "whole")):
        return collected(rows)
    return given_or_current(comm).collect(local(rows), dst, file=file)
