"""The planners' cost model as a function of the bandwidth and latency of each class of connections.

Connections of the same kind, bandwidth, latency and duplex are one class, with one bandwidth and one latency. Only the
sum of latencies along a route can be measured, so only classes that some route begins with have a latency.

Called by `fit` and `run`. Free to change while predictions are those of `planner/cost` for the topology that is
written, and a fit finds the rates of a machine that exists only in that model (`tests/dgcl/calibration/test_fit.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dgcl.planner import Trees
from dgcl.planner.cost import GIGA, direction_loads, link_rows
from dgcl.topology import Connection, Topology

_DIGITS = 4
_AS_SLOW = 0.999


@dataclass(frozen=True, eq=False)
class Observation:
    """An exchange and its measured time in seconds."""

    name: str
    trees: Trees
    row_bytes: int
    seconds: float


@dataclass(frozen=True)
class FittedClass:
    """A class of connections that are fitted together.

    Attributes:
        kind: Of the connections.
        connections: Their names.
        bandwidth: GB/s.
        latency: Seconds of each.
        decided: In how many stages of the measurements one of them was the slowest.
    """

    kind: str
    connections: tuple[str, ...]
    bandwidth: float
    latency: float
    decided: int


class ClassModel:
    """What exchanges take on a topology, in terms of its C classes of connections.

    Parameters are C latencies in seconds, then C inverse bandwidths in seconds per GB.

    Raises:
        ValueError: An exchange over a link that the topology does not have.
    """

    def __init__(self, topology: Topology, observations: Sequence[Observation]) -> None:
        self._topology = topology
        arrays = topology.arrays()
        keys = [(c.kind, c.bandwidth, c.latency, c.duplex) for c in topology.connections]
        self._keys = list(dict.fromkeys(keys))
        self._connection_class = np.array([self._keys.index(key) for key in keys])
        direction_class = self._connection_class[arrays.direction_connection]
        bearing = np.zeros(len(self._keys), bool)
        bearing[direction_class[arrays.link_directions[arrays.link_ptr[:-1]]]] = True
        self._bearing = bearing
        # For each link that carries something in a stage: how many connections of each class that has a
        # latency it passes, and the largest load that it meets on each class, in GB. In the order of stages.
        hops: list[NDArray[np.float64]] = []
        loads: list[NDArray[np.float64]] = []
        stage_first: list[int] = []
        stage_observation: list[int] = []
        for number, observation in enumerate(observations):
            rows = link_rows(observation.trees, arrays)
            carried = direction_loads(rows, arrays, observation.row_bytes) / GIGA
            for stage in range(rows.shape[0]):
                used = np.flatnonzero(rows[stage] > 0)
                if len(used) == 0:
                    continue
                stage_first.append(len(loads))
                stage_observation.append(number)
                for link in used:
                    route = arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]
                    passed = direction_class[route]
                    hops.append(bearing * np.bincount(passed, minlength=len(self._keys)))
                    most = np.zeros(len(self._keys))
                    np.maximum.at(most, passed, carried[stage, route])
                    loads.append(most)
        self._hops, self._loads = np.array(hops, np.float64), np.array(loads)
        self._stage_first = np.array(stage_first)
        self._stage_observation = np.array(stage_observation)
        self._num_observations = len(observations)
        self._declared = np.array([[latency, bandwidth] for _, bandwidth, latency, _ in self._keys])

    def _times(self, parameters: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """What each link in use takes, and the class that decides it."""
        latencies, inverse = np.split(parameters, 2)
        times = self._loads * inverse
        most = times.max(axis=1)
        slowest = (times >= _AS_SLOW * most[:, None]).argmax(axis=1)  # of those that are as slow the first
        return self._hops @ latencies + most, slowest

    def _deciding(self, parameters: NDArray[np.float64]) -> NDArray[np.int64]:
        """The class that each stage waits for."""
        total, slowest = self._times(parameters)
        ends = np.append(self._stage_first[1:], len(total))
        links = [a + total[a:b].argmax() for a, b in zip(self._stage_first, ends, strict=True)]
        return slowest[links]

    def predict(self, parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of each exchange."""
        stages = np.maximum.reduceat(self._times(parameters)[0], self._stage_first)
        seconds = np.bincount(self._stage_observation, stages, self._num_observations)
        return np.maximum(seconds, 1e-12)

    def predict_as_it_is(self) -> NDArray[np.float64]:
        """Seconds of each exchange by the topology's own figures."""
        latency, bandwidth = self._declared.T
        return self.predict(np.concatenate([latency, 1 / bandwidth]))

    def start(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return start values: each class's highest observed bandwidth, and the shortest exchange's latency."""
        link_stage = np.searchsorted(self._stage_first, np.arange(len(self._loads)), side="right") - 1
        lasted = seconds[self._stage_observation[link_stage]]
        fastest = (self._loads / lasted[:, None]).max(axis=0, initial=0.0)
        fastest *= np.where(
            self._bearing, 1.0, 1.05
        )  # of two that may be at fault, the one that routes begin with
        inverse = 1 / np.where(fastest > 0, fastest, self._declared[:, 1])
        latency = seconds.min() / max(1.0, self._hops.sum(axis=1).max(initial=0.0))
        return np.concatenate([np.full(len(self._keys), latency), inverse])

    def topology_of(self, parameters: NDArray[np.float64]) -> Topology:
        """The topology with these parameters.

        A class that decided nothing was not seen at its limit: it keeps its figure, or gets the least at
        which it decides nothing that was measured.
        """
        latencies, inverse = np.split(parameters, 2)
        deciding = self._deciding(parameters)
        waits = (self._loads * inverse).max(axis=1)
        unseen = (self._loads / waits[:, None]).max(axis=0)  # GB/s from which on no transfer waits
        used = self._loads.sum(axis=0)
        connections: list[Connection] = []
        for connection, index in zip(self._topology.connections, self._connection_class, strict=True):
            bandwidth, latency = connection.bandwidth, connection.latency
            if used[index]:
                bandwidth = 1 / inverse[index] if index in deciding else max(bandwidth, 1.001 * unseen[index])
                latency = latencies[index] if self._bearing[index] else 0.0
            connections.append(replace(connection, bandwidth=_rounded(bandwidth), latency=_rounded(latency)))
        return replace(self._topology, connections=tuple(connections))

    def describe(self, parameters: NDArray[np.float64], fitted: Topology) -> tuple[FittedClass, ...]:
        """The classes, as they stand in the fitted topology."""
        deciding = self._deciding(parameters)
        classes = []
        for index, (kind, _, _, duplex) in enumerate(self._keys):
            places = np.flatnonzero(self._connection_class == index).tolist()
            mine = [fitted.connections[place] for place in places]
            classes.append(
                FittedClass(
                    kind=f"{kind} (both ways)" if duplex == "half" else kind,
                    connections=tuple(c.name for c in mine),
                    bandwidth=mine[0].bandwidth,
                    latency=mine[0].latency,
                    decided=int((deciding == index).sum()),
                )
            )
        return tuple(classes)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
