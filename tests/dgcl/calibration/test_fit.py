"""The fit finds the figures of machines that exist only in the cost model."""

import math

import numpy as np
import pytest

from dgcl.calibration.connection_classes import Observation
from dgcl.calibration.fit import Fit, fit_topology
from dgcl.calibration.run import host_structure
from dgcl.planner.cost import predicted_seconds
from dgcl.topology import Topology, preset
from dgcl.topology.latencies import without_latencies
from tests.dgcl.calibration.support import altered, observe

# A declared topology, and the figures that are true.
MACHINES = [
    pytest.param(host_structure(2), {"core": 9.0, "memory": 13.0}, {"core": 20e-6}, id="host2"),
    pytest.param(host_structure(8), {"core": 5.0, "memory": 17.0}, {"core": 90e-6}, id="host8"),
    pytest.param(preset("uniform:4"), {"port": 3.5}, {"port": 5e-6}, id="uniform"),
    pytest.param(without_latencies(preset("pcie8")), {"PCIe": 9.0, "QPI": 6.0}, {"PCIe": 4e-6}, id="pcie8"),
    pytest.param(
        without_latencies(preset("dgx1")), {"NV1": 18.0, "NV2": 37.0}, {"NV1": 7e-6, "NV2": 3e-6}, id="dgx1"
    ),
]


def rates(fit: Fit) -> dict[str, float]:
    """Of the classes that decided something."""
    return {one.kind.removesuffix(" (both ways)"): one.bandwidth for one in fit.classes if one.decided}


@pytest.mark.parametrize("declared, bandwidths, latencies", MACHINES)
def test_figures_are_found(declared: Topology, bandwidths: dict[str, float], latencies: dict[str, float]):
    truth = altered(declared, bandwidths, latencies)
    # Trees name devices and links, not bandwidths: what truth took is fitted on what was declared.
    fit = fit_topology(declared, observe(truth))
    found = rates(fit)
    for kind, rate in bandwidths.items():
        if kind in found:
            assert found[kind] == pytest.approx(rate, rel=0.02), kind
    assert set(found) & set(bandwidths)
    assert fit.residual < 0.01
    for one in fit.classes:
        if one.kind in latencies and one.decided:
            assert one.latency == pytest.approx(latencies[one.kind], rel=0.05)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_limit_that_was_not_reached_limits_nothing(num_ranks: int):
    declared = host_structure(num_ranks)
    observations = observe(altered(declared, {"core": 9.0, "memory": 1000.0}, {"core": 2e-5}))
    fit = fit_topology(declared, observations)
    seconds = [observation.seconds for observation in observations]
    np.testing.assert_allclose(fit.predicted, seconds, rtol=0.01)
    # Each sender got its full rate, however many there were: so much was seen, and no more is claimed.
    memory = next(one for one in fit.classes if one.kind == "memory (both ways)")
    assert memory.bandwidth == pytest.approx(9.0 * num_ranks, rel=0.02)


def test_noise_and_outliers():
    declared = host_structure(4)
    truth = altered(declared, {"core": 8.0, "memory": 15.0}, {"core": 30e-6})
    noise = np.random.default_rng(0).lognormal(0, 0.03, 1000)
    late = {3: 6.0, 11: 4.0, 20: 9.0}
    observations = observe(truth, lambda number: float(noise[number]) * late.get(number, 1.0))
    fit = fit_topology(declared, observations)
    assert {observations[number].name for number in late} <= set(fit.dropped)
    assert len(fit.dropped) <= 0.15 * len(observations)
    found = rates(fit)
    assert found["core"] == pytest.approx(8.0, rel=0.06)
    assert fit.residual < 0.05


def test_what_was_not_measured_stays():
    declared = without_latencies(preset("dgx1"))
    truth = altered(declared, {"NV1": 20.0}, {})
    nv1 = {(link.src, link.dst) for link in declared.links if len(link.route) == 1}
    names = {f"{a[3:]}>{b[3:]}" for a, b in nv1}
    few = [o for o in observe(truth) if o.name.split(",")[0] in names]
    assert len(few) >= 7
    fit = fit_topology(declared, few)
    before = {c.name: (c.bandwidth, c.latency) for c in declared.connections if c.kind not in ("NV1", "NV2")}
    after = {c.name: (c.bandwidth, c.latency) for c in fit.topology.connections}
    assert before == {name: after[name] for name in before}


def test_the_prediction_is_that_of_the_file():
    declared = host_structure(3)
    observations = observe(altered(declared, {"core": 7.0, "memory": 9.0}, {"core": 1e-5}))
    fit = fit_topology(declared, observations)
    arrays = fit.topology.arrays()
    for observation, predicted in zip(observations, fit.predicted, strict=True):
        seconds = predicted_seconds(observation.trees, arrays, observation.row_bytes)
        assert math.isclose(seconds, predicted, rel_tol=1e-9)


def test_too_little_is_refused():
    declared = host_structure(2)
    with pytest.raises(ValueError, match=r"observations must be at least 2 .*got 1"):
        fit_topology(declared, observe(declared)[:1])


def test_a_link_that_is_not_there_is_refused():
    observations: list[Observation] = observe(preset("uniform:4"))
    with pytest.raises(ValueError, match="no such link"):
        fit_topology(Topology.from_json(_line()), observations)


def _line() -> dict[str, object]:
    return {
        "schema": "dgcl-topology/1",
        "name": "line",
        "devices": [{"name": f"d{i}"} for i in range(4)],
        "connections": [
            {"name": f"c{i}", "kind": "wire", "a": f"d{i}", "b": f"d{i + 1}", "bandwidth": 1.0}
            for i in range(3)
        ],
    }
