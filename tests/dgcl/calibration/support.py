"""A machine that was never built: its times are those of the cost model, so a fit must find its figures."""

from collections.abc import Callable
from dataclasses import replace

from dgcl.calibration.connection_classes import Observation
from dgcl.calibration.experiment_programs import exchange_of
from dgcl.calibration.experiments import experiments
from dgcl.planner.cost import predicted_seconds
from dgcl.topology import Topology

ROW_BYTES = 512


def altered(topology: Topology, rates: dict[str, float], latencies: dict[str, float]) -> Topology:
    """The topology with other GB/s and seconds for connections of some kinds."""
    return replace(
        topology,
        connections=tuple(
            replace(c, bandwidth=rates.get(c.kind, c.bandwidth), latency=latencies.get(c.kind, c.latency))
            for c in topology.connections
        ),
    )


def observe(truth: Topology, wrong: Callable[[int], float] = lambda number: 1.0) -> list[Observation]:
    """All experiments as ``truth`` would take them, each longer by a factor."""
    arrays = truth.arrays()
    observations = []
    for number, experiment in enumerate(experiments(truth, ROW_BYTES)):
        trees = exchange_of(experiment, truth, ROW_BYTES)[1]
        seconds = predicted_seconds(trees, arrays, ROW_BYTES) * wrong(number)
        observations.append(Observation(experiment.name, trees, ROW_BYTES, seconds))
    return observations
