"""The transport between CUDA devices of one machine: programs of :mod:`dgcl.program`, enqueued on the caller's stream.

Experimental: it has run between processes that share one GPU, and between no two GPUs (docs/gpu.md). A call of
``device_exchange`` takes buffers of ``device_pool``; hosts agree on it (``host_agreement``), and each enqueues its
``operations``, which ``program`` has laid out in ``device_tables``. ``gpu`` is one device, ``control_block`` its
flags, and ``peer_memory`` what it sees of others. ``connect_devices`` sets all up, once ``probe`` and ``trial`` have
found that the machine can; ``watchdog`` keeps deadlines. Tests are in tests/dgcl/transport/cuda, without a GPU, and
tests/gpu.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dgcl.errors import CommError, DisagreementError
from dgcl.ranks.thread_control import ThreadControl
from dgcl.topology.checks import shown

if TYPE_CHECKING:
    import torch

    from dgcl.program.rank_program import Program
    from dgcl.ranks.control import Control
    from dgcl.transport.cuda.device_exchange import DeviceExchange
    from dgcl.transport.cuda.gpu import Device

_log = logging.getLogger("dgcl")


def connect_device(
    programs: Mapping[str, Program], control: Control, timeout: float, device: Device
) -> tuple[DeviceExchange | None, str]:
    """The exchange of a device's tensors inside one machine, which has proved itself by calls; or None and why not.

    Collective.

    Args:
        programs, control, timeout, device: Of this rank.
    """
    from dgcl.transport.cuda.device_exchange import DeviceExchange

    try:
        exchange = DeviceExchange(programs, control, timeout, device)
    except DisagreementError:
        raise
    except CommError as error:
        return None, str(error)
    problem = exchange.prove()
    for rank, why in enumerate(control.exchange(problem)):
        if why:
            exchange.close()
            return None, f"rank {rank}: {why}"
    return exchange, ""


def _as_device(device: Any) -> torch.device:
    """The device that is named.

    Raises:
        ValueError: There is no such kind of device.
    """
    import torch

    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        raise ValueError(f"device must be 'cpu', 'cuda', 'cuda:1' or a torch.device (got {shown(device)})")
    try:
        requested = torch.device(device)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"device: {device!r}: {error}") from None
    if requested.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected 'cpu' or a CUDA device, got {requested}")
    return requested


def open_devices(control: Control, device: str | torch.device) -> Device | None:
    """This rank's device, opened; None where ranks compute on the CPU. Collective.

    Raises:
        ValueError: There is no such device, on some rank, or some ranks compute on the CPU; on every rank.
    """
    opened, kind, problem = None, "", ""
    try:
        requested = _as_device(device)
        kind = requested.type
        if kind == "cuda":
            # Here, as it takes half a second, which ranks on the CPU need not wait.
            from dgcl.transport.cuda.gpu import open_device

            opened = open_device(requested)
    except ValueError as error:
        problem = str(error)
    except RuntimeError as error:  # torch's; busy is also one whose compute mode lets one process in
        problem = f"device: {device!r}: {error} (its compute mode: nvidia-smi -q -d COMPUTE)"
    reports = control.exchange((kind, "" if opened is None else opened.name, problem))
    for rank, (_, _, theirs) in enumerate(reports):
        if theirs:
            raise ValueError(f"{theirs} (on rank {rank})")
    if len({kind for kind, _, _ in reports}) > 1:
        which = ", ".join(f"rank {rank}: {kind}" for rank, (kind, _, _) in enumerate(reports))
        raise ValueError(f"device: expected GPUs on all ranks or on none, got {which}")
    if opened is None:
        return None
    ranks_on = defaultdict(list)
    for rank, (_, name, _) in enumerate(reports):
        ranks_on[name].append(str(rank))
    opened.is_shared = len(ranks_on) < len(reports)
    for name, ranks in ranks_on.items():
        which = " and ".join(ranks)
        if len(ranks) > 1 and isinstance(control, ThreadControl):
            raise ValueError(
                f"device: ranks {which} are threads and share {name}, whose gradients torch computes in one thread,"
                ' where each would wait for the other; start processes (torchrun, or ranks="processes")'
            )
        if len(ranks) > 1 and control.rank == 0:
            _log.warning(
                "ranks %s share %s: they take turns there; start no more ranks than GPUs, or set each rank's by "
                "torch.cuda.set_device",
                which,
                name,
            )
    if isinstance(control, ThreadControl):
        opened.problem = opened.problem or "ranks are threads, which the driver may block while kernels run"
    return opened
