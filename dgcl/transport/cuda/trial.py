"""Tests an exchange between a machine's GPUs in processes of its own, before a communicator uses it.

What a device does to a process whose kernels go wrong (an address that is none, a wait that never ends) stays with that
process. So each rank starts one that does on its device what the rank would do
(:mod:`dgcl.transport.cuda.trial_process`), and looks how it ends. A trial that went well is kept: a file in the user's
cache folder, by driver, devices and kernels.
Called by `dgcl/transport/connect`. Free to change while all ranks get the same reason when a process fails, hangs or
cannot start, and a kept trial is not repeated (`tests/dgcl/transport/cuda/test_trial.py`).
"""

import hashlib
import logging
import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from socket import create_server

from dgcl.kernels import cuda_ptx
from dgcl.ranks.control import Control
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.machines import places_of_ranks, several_machines
from dgcl.topology.copy_rates import rates_file
from dgcl.transport.cuda.gpu import Device
from dgcl.transport.cuda.probe import hindrance, out_of_reach

_log = logging.getLogger("dgcl")

_COMMAND = (sys.executable, "-m", "dgcl.transport.cuda.trial_process")
_SECONDS = 120.0  # on devices it ends itself after 15; before, modules are loaded and kernels compiled
_DRIVER = Path("/proc/driver/nvidia/version")


def failed_trial(control: Control, device: Device) -> str:
    """Why rows should not go through the memory of devices; "" where a trial went well, now or before. Collective.

    Ranks that are threads, or on several machines, are not tried: they have no such memory.
    """
    problem = device.problem or hindrance(device)
    for uuid in control.exchange(device.uuid):
        problem = problem or out_of_reach(device, uuid)
    places = places_of_ranks(control, device.name)
    if any(control.exchange(problem)) or several_machines(places) or not isinstance(control, GroupControl):
        return ""  # set-up says so
    kept = _kept("".join(place.gpu for place in places))
    with closing(create_server(("127.0.0.1", 0))) as server:
        answers = control.exchange((os.path.exists(kept), server.getsockname()[1]))
    if all(known for known, _ in answers):
        return ""
    _log.info("GPUs are tried in processes of their own, once on this machine (some seconds)")
    reports = control.exchange(_try(control, device.tensors.device, answers[0][1]))
    for rank, why in enumerate(reports):
        if why:
            return f"a trial in a process of its own failed on rank {rank}: {why}"
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
    return ""


def _kept(devices: str) -> Path:
    """The file that says that a trial of these devices went well."""
    digest = hashlib.sha256(devices.encode() + cuda_ptx.ARCHIVE.read_bytes())
    with suppress(OSError):
        digest.update(_DRIVER.read_bytes())
    return rates_file().with_name(f"devices-{digest.hexdigest()[:16]}")


def _try(control: Control, device: object, port: int) -> str:
    """What this rank's process ended with; "" where it went well."""
    environment = os.environ | {
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "RANK": str(control.rank),
        "WORLD_SIZE": str(control.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    try:
        ended = subprocess.run(
            [*_COMMAND, str(device)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ended.returncode == 0:
        return ""
    lines = [line for line in ended.stderr.splitlines() if line and not line.startswith(" ")]
    # Behind "Timeout" comes where each thread is.
    why = next(
        (line for line in lines if line.startswith("Timeout")), lines[-1] if lines else "it said nothing"
    )
    return f"{why} (exit code {ended.returncode})"
