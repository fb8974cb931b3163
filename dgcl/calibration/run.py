"""One whole calibration: measure, fit, check, and report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from dgcl.calibration.calibrate import Calibration, calibrate
from dgcl.calibration.check import median_error
from dgcl.calibration.effort import Effort
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.ranks.machines import find_topology, place_of_this_rank, places_of_ranks, several_machines
from dgcl.ranks.threads import available_cores
from dgcl.topology import Topology
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.host import host_topology
from dgcl.transport.cuda import open_devices

if TYPE_CHECKING:
    from dgcl.transport.cuda.gpu import Device

# Where the connections of a host are, is known; how fast they are, is what is measured. These figures only
# tell the classes apart.
_NOMINAL = CopyRates(one=10.0, all=11.0)


def host_structure(num_ranks: int) -> Topology:
    """Return the connections of CPU ranks on this host, with nominal figures."""
    return host_topology(num_ranks, _NOMINAL)


def run_rank(
    topology: Topology | None,
    row_bytes: int,
    num_checks: int,
    effort: Effort,
    device: str = "cpu",
) -> Calibration | None:
    """What every rank of a calibration runs. Collective; the outcome is rank 0's.

    Args:
        topology: On rank 0; None: CPU ranks on this host, or what connects the GPUs, found out.
        row_bytes: Bytes of a row.
        num_checks: Plans to predict and time; 0: none.
        effort: How long to measure.
        device: "cpu", or "cuda": rank r uses GPU r modulo their number, with the channels that communicators on GPUs
            have.

    Raises:
        ValueError: Ranks of several hosts, or that share a GPU, no links, another number of devices than ranks; on
            every rank.
        CommError: A rank is gone or late.
    """
    control = context.require_control()
    # A call is timed from the first rank's begin to the last rank's end, by one clock.
    places = control.exchange(place_of_this_rank())
    if several_machines(places):
        hosts = ", ".join(dict.fromkeys(place.host for place in places))
        raise ValueError(
            f"ranks run on several hosts ({hosts}), whose clocks differ: calibrate the ranks of one host, and "
            f"write the network into the file by hand"
        )
    opened = _open(control, device)
    base = topology
    if control.broadcast(topology is None):
        if opened is None:
            base = host_structure(control.world_size)
        else:
            base = find_topology(control, places_of_ranks(control, opened.name)).topology
    return calibrate(
        control,
        base if control.rank == 0 else None,
        row_bytes=row_bytes,
        num_checks=num_checks,
        effort=effort,
        device=opened,
    )


def _open(control: Control, device: str) -> Device | None:
    """This rank's device. Collective."""
    if device == "cuda":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(control.rank % torch.cuda.device_count())
    opened = open_devices(control, device)
    if opened is not None and opened.is_shared:
        raise ValueError(
            "ranks share a GPU, and no link is between them: start no more ranks than there are GPUs"
        )
    return opened


def run_on_host(
    topology: Topology | None,
    num_ranks: int,
    row_bytes: int,
    num_checks: int,
    effort: Effort,
    ranks: Literal["threads", "processes"] = "processes",
    device: str = "cpu",
) -> Calibration:
    """Start ranks on this host and calibrate."""
    import dgcl

    args = topology, row_bytes, num_checks, effort, device
    outcomes = dgcl.launch(run_rank, num_ranks, *args, ranks=ranks)
    assert isinstance(outcomes[0], Calibration)
    return outcomes[0]


def outcome_json(calibration: Calibration) -> dict[str, Any]:
    """Everything that was measured, as JSON values; seconds, bytes, GB/s."""
    fit = calibration.fit
    outcome: dict[str, Any] = {
        "ranks": fit.topology.num_devices,
        "device": calibration.device,
        "cores": available_cores(),
        "row_bytes": calibration.row_bytes,
        "median_residual": fit.residual,
        "classes": [asdict(one) for one in fit.classes],
        "measured": [
            {
                "name": one.experiment.name,
                "topic": one.experiment.topic,
                "bytes": one.experiment.rows * calibration.row_bytes,
                "seconds": one.seconds,
                "predicted": one.predicted,
                "dropped": one.dropped,
            }
            for one in calibration.measured
        ],
        "contention": contention(calibration),
    }
    if calibration.checked:
        outcome["median_error"] = median_error(calibration.checked)
        outcome["checked"] = [asdict(one) for one in calibration.checked]
    return outcome


def contention(calibration: Calibration) -> list[dict[str, Any]]:
    """What each sender gets where several share a connection (the paper's Table 3)."""
    rows = []
    for one in calibration.measured:
        if one.experiment.senders:
            sent = one.experiment.rows * calibration.row_bytes / one.experiment.senders
            rows.append(
                {
                    "shares": one.experiment.shares,
                    "senders": one.experiment.senders,
                    "each": sent / one.seconds / 1e9,
                    "predicted_each": sent / one.predicted / 1e9,
                }
            )
    return rows
