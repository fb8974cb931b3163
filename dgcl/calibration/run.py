"""Runs a whole calibration: measures the links of a topology on this job's ranks, fits its rates, and reports.

The given topology says where connections are; its rates only tell which are alike. All ranks must be on one host: a
call is timed from its begin on one rank to its end on another, by one clock.

Called by `dgcl/cli/topo_calibrate`. Free to change while each connection of the topology gets a rate, the file that is
written loads as a topology, and wrong topologies are refused on every rank
(`tests/dgcl/calibration/test_calibrate.py`; on GPUs: `tests/dgcl/calibration/test_on_device.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import dgcl
from dgcl.calibration.connection_classes import Observation
from dgcl.calibration.experiment_programs import exchange_of
from dgcl.calibration.experiments import Experiment, experiments
from dgcl.calibration.fit import Fit, fit_topology
from dgcl.calibration.timing import Effort, time_all
from dgcl.planner import Trees
from dgcl.program import Program
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.ranks.machines import find_topology, place_of_this_rank, places_of_ranks, several_machines
from dgcl.ranks.threads import available_cores
from dgcl.topology import Topology
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.host import host_topology
from dgcl.topology.latencies import without_latencies
from dgcl.transport.cuda import open_devices

if TYPE_CHECKING:
    from dgcl.transport.cuda.gpu import Device

_log = logging.getLogger("dgcl")

# Where the connections of a host are, is known; how fast they are, is what is measured. These figures only
# tell the classes apart.
_NOMINAL = CopyRates(one=10.0, all=11.0)


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted topology and everything that it was fitted to.

    Attributes:
        fit: The topology, its classes, and how well they explain what was measured.
        experiments: What was sent.
        seconds: What each took.
        row_bytes: Bytes of a row.
        device: Where the rows were.
    """

    fit: Fit
    experiments: Sequence[Experiment]
    seconds: Sequence[float]
    row_bytes: int
    device: str


def host_structure(num_ranks: int) -> Topology:
    """Return the connections of CPU ranks on this host, with nominal figures."""
    return host_topology(num_ranks, _NOMINAL)


def run_rank(
    topology: Topology | None, row_bytes: int, effort: Effort, device: str = "cpu"
) -> Calibration | None:
    """What every rank of a calibration runs: measure, and fit on rank 0. Collective; the outcome is rank 0's.

    Args:
        topology: On rank 0, where the connections are; rank r is on device r. Its figures only say which connections
            are alike; latencies say nothing. None: CPU ranks on this host, or what connects the GPUs, found out.
        row_bytes: Bytes of a row. Narrower rows cost more for each byte: take what is typical of the model.
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
    if control.broadcast(topology is None):
        if opened is None:
            topology = host_structure(control.world_size)
        else:
            topology = find_topology(control, places_of_ranks(control, opened.name)).topology
    plans: list[Experiment] = []
    trees: list[Trees] = []

    def prepare() -> list[list[Program]]:
        assert base is not None, "rank 0 has the topology"
        if base.num_devices != control.world_size:
            raise ValueError(
                f"topology must have a device for each of {control.world_size} ranks (got {base.num_devices})"
            )
        plans.extend(experiments(base, row_bytes))
        exchanges = [exchange_of(plan, base, row_bytes, seed=n) for n, plan in enumerate(plans)]
        trees.extend(each for _, each in exchanges)
        return [programs for programs, _ in exchanges]

    base = None if topology is None else without_latencies(topology)
    seconds = time_all(control, prepare, row_bytes, effort, opened)
    if control.rank != 0 or base is None:
        return None
    fit = fit_topology(
        base,
        [
            Observation(plan.name, each, row_bytes, lasted)
            for plan, each, lasted in zip(plans, trees, seconds, strict=True)
        ],
    )
    _log.info("calibrated %s: median residual %.1f%%", base.name, 100 * fit.residual)
    return Calibration(fit, plans, seconds, row_bytes, device)


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
    effort: Effort,
    ranks: Literal["threads", "processes"] = "processes",
    device: str = "cpu",
) -> Calibration:
    """Start ranks on this host and calibrate."""
    outcome = dgcl.launch(run_rank, num_ranks, topology, row_bytes, effort, device, ranks=ranks)[0]
    assert isinstance(outcome, Calibration)
    return outcome


def outcome_json(calibration: Calibration) -> dict[str, Any]:
    """Everything that was measured, as JSON values; seconds, bytes, GB/s."""
    fit, row_bytes = calibration.fit, calibration.row_bytes
    times = list(zip(calibration.experiments, calibration.seconds, fit.predicted.tolist(), strict=True))
    measured = [
        {
            "name": one.name, "topic": one.topic, "bytes": one.rows * row_bytes, "seconds": seconds,
            "predicted": predicted, "dropped": one.name in fit.dropped,
        }
        for one, seconds, predicted in times
    ]  # fmt: skip
    contention = []  # what each sender gets that shares a connection (the paper's Table 3)
    for one, seconds, predicted in times:
        if one.senders:
            each = one.rows * row_bytes / one.senders / 1e9
            rates = {"each": each / seconds, "predicted_each": each / predicted}
            contention.append({"shares": one.shares, "senders": one.senders, **rates})
    return {
        "ranks": fit.topology.num_devices,
        "device": calibration.device,
        "cores": available_cores(),
        "row_bytes": row_bytes,
        "median_residual": fit.residual,
        "classes": [asdict(one) for one in fit.classes],
        "measured": measured,
        "contention": contention,
    }
