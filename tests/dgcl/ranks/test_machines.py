"""Machines of a job: gathered over the control plane, joined into one topology that is right for every rank."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dgcl
from dgcl.ranks import machines
from dgcl.ranks.context import context
from dgcl.ranks.control import SingleControl
from dgcl.ranks.machines import RankPlace, find_topology, place_of_this_rank, several_machines
from dgcl.ranks.thread_control import ThreadControl
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.draft import Imported
from tests.support.fake_host import FakeDriver, FakeKernel, gpu, to_switch
from tests.support.importer_cases import routes
from tests.support.samples import named

TWO_HOSTS = [RankPlace(f"id{r % 2}", f"node{r % 2}") for r in range(4)]  # ranks take turns on the hosts


@pytest.fixture(autouse=True)
def _no_measurement(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machines, "copy_rates", lambda copiers: CopyRates(8.0, 8.0 + copiers))


def on_threads(
    places: Sequence[RankPlace], kernels: dict[str, FakeKernel], drivers: dict[str, Any] | None = None
) -> list[Imported]:
    """What every rank finds, each machine with a kernel and a driver of its own."""

    def rank() -> Imported:
        control = context.require_control()
        machine = places[control.rank].machine
        driver = (drivers or {}).get(machine)
        return find_topology(control, places, sysfs=kernels[machine].sysfs, source=driver)

    return dgcl.launch(rank, len(places))


def kernel(folder: Path, speed: str = "25000") -> FakeKernel:
    made = FakeKernel(folder)
    made.processors(1, 4)
    made.ethernet("eth0", made.pci("0000:00:03.0"), speed=speed)
    return made


def test_cpu_ranks_on_two_hosts(tmp_path, caplog):
    kernels = {"id0": kernel(tmp_path / "0"), "id1": kernel(tmp_path / "1", speed="-1")}
    with caplog.at_level(logging.INFO, logger="dgcl"):
        found = on_threads(TWO_HOSTS, kernels)
    assert all(imported == found[0] for imported in found)
    topology = found[0].topology
    assert [(device.name, device.machine) for device in topology.devices] == [
        ("rank0", 0), ("rank1", 1), ("rank2", 0), ("rank3", 1),
    ]  # fmt: skip
    assert len(topology.links) == 12
    assert routes(topology)["rank0", "rank2"] == ("core0", "m0.memory", "store2")
    assert routes(topology)["rank2", "rank1"] == ("core2", "m0.out", "m0.wire", "m1.wire", "m1.in", "store1")
    rates = {c.name: c.bandwidth for c in topology.connections}
    assert (rates["m0.wire"], rates["m1.wire"], rates["m0.memory"]) == (3.125, 1.25, 10.0)
    assert found[0].notes == ("machine 1: its network port does not tell its speed; 1.25 GB/s was assumed",)
    assert "machine 0: node0: 1 socket, 4 processors" in caplog.text
    assert caplog.text.count("machine 1: node1") == 1


def test_the_ports_that_gloo_was_told_to_use(tmp_path):
    """Not the fastest of a host; each rank its own, where ranks of a host were told different ones."""
    kernels = {f"id{m}": kernel(tmp_path / str(m), speed="100000") for m in (0, 1)}
    kernels["id0"].ethernet("ib0", None, speed="40000")
    kernels["id0"].ethernet("ib1", None, speed="10000")
    kernels["id1"].ethernet("bond0", None, speed="20000")
    interfaces = [(0, "ib0"), (1, "bond0"), (0, "ib1"), (1, "bond0"), (0, "ib0")]
    places = [RankPlace(f"id{m}", f"node{m}", interface=name) for m, name in interfaces]
    found = on_threads(places, kernels)[0]
    rates = {c.name: c.bandwidth for c in found.topology.connections if "wire" in c.name}
    assert rates == {"m0.wire": 5.0, "m0.wire1": 1.25, "m1.wire": 2.5}
    between = routes(found.topology)
    assert between["rank2", "rank3"] == ("core2", "m0.out1", "m0.wire1", "m1.wire", "m1.in", "store3")
    assert between["rank1", "rank4"] == ("core1", "m1.out", "m1.wire", "m0.wire", "m0.in", "store4")
    assert between["rank0", "rank2"] == ("core0", "m0.memory", "store2")
    assert found.notes == ()


def test_a_port_that_is_not_there_has_no_speed(tmp_path):
    places = [RankPlace("id0", "node0", interface="eth9"), RankPlace("id1", "node1")]
    found = on_threads(places, {f"id{m}": kernel(tmp_path / str(m)) for m in (0, 1)})[0]
    rates = {c.name: c.bandwidth for c in found.topology.connections if "wire" in c.name}
    assert rates == {"m0.wire": 1.25, "m1.wire": 3.125}
    assert found.notes == ("machine 0: its network port does not tell its speed; 1.25 GB/s was assumed",)


def gpus_of(count: int, fabric: str = "") -> list[Any]:
    return [gpu(i, f"0000:0{i + 4}:00.0", to_switch(12), fabric=fabric) for i in range(count)]


def gpu_kernel(folder: Path, nics: int = 1) -> FakeKernel:
    made = FakeKernel(folder)
    made.processors(1, 4)
    for i in range(4):
        made.pci("0000:00:00.0", f"0000:0{i + 4}:00.0")
    for i in range(nics):
        made.infiniband(f"mlx5_{i}", made.pci("0000:00:00.0", f"0000:1{i}:00.0"))
    return made


def gpu_places(*machines_and_gpus: tuple[int, int]) -> list[RankPlace]:
    return [RankPlace(f"id{m}", f"node{m}", f"GPU-{g:04d}-abcd") for m, g in machines_and_gpus]


def test_gpus_on_two_machines_in_the_order_of_ranks(tmp_path):
    places = gpu_places((0, 3), (1, 0), (0, 1), (1, 2))
    kernels = {f"id{m}": gpu_kernel(tmp_path / str(m)) for m in (0, 1)}
    drivers = {f"id{m}": FakeDriver(gpus_of(4)) for m in (0, 1)}
    topology = on_threads(places, kernels, drivers)[0].topology
    assert [(device.name, device.machine) for device in topology.devices] == [
        ("m0.gpu3", 0), ("m1.gpu0", 1), ("m0.gpu1", 0), ("m1.gpu2", 1),
    ]  # fmt: skip
    assert routes(topology)["m0.gpu3", "m0.gpu1"] == ("m0.gpu3-m0.nvswitch", "m0.gpu1-m0.nvswitch")
    between = routes(topology)["m0.gpu3", "m1.gpu2"]
    assert {"m0.mlx5_0-ib", "m1.mlx5_0-ib"} <= set(between)
    assert len(topology.links) == 12


def test_an_nvlink_domain_over_two_machines(tmp_path):
    places = gpu_places((0, 0), (0, 1), (1, 0), (1, 1))
    kernels = {f"id{m}": gpu_kernel(tmp_path / str(m), nics=0) for m in (0, 1)}
    drivers = {f"id{m}": FakeDriver(gpus_of(2, fabric="abc.1")) for m in (0, 1)}
    topology = on_threads(places, kernels, drivers)[0].topology
    assert {c.b for c in topology.connections if c.kind == "NV12"} == {"nvlink domain 0"}
    assert len(routes(topology)["m0.gpu1", "m1.gpu0"]) == 2


def test_machines_that_nothing_joins_have_no_links_between_them(tmp_path):
    places = gpu_places((0, 0), (1, 0))
    kernels = {f"id{m}": gpu_kernel(tmp_path / str(m), nics=0) for m in (0, 1)}
    found = on_threads(places, kernels, {f"id{m}": FakeDriver(gpus_of(1)) for m in (0, 1)})[0]
    assert found.topology.links == ()
    assert "2 ordered pairs of ranks have no link" in found.notes[-1]


def test_gpus_of_one_machine_keep_their_plain_names(tmp_path):
    kernels = {"id0": gpu_kernel(tmp_path)}
    found = on_threads(gpu_places((0, 2), (0, 0)), kernels, {"id0": FakeDriver(gpus_of(3))})[0]
    assert [device.name for device in found.topology.devices] == ["gpu2", "gpu0"]


@named(
    "places, message",
    {
        "mixed": ([*gpu_places((0, 0)), RankPlace("id0", "node0")], "some ranks run on GPUs"),
        "shared": (gpu_places((0, 0), (0, 0)), "machine 'node0' .*GPU-0000.*two ranks use it"),
        "unknown": (gpu_places((0, 7)), "machine 'node0' .*GPU-0007.*does not know it"),
    },
)
def test_what_cannot_be_described(places: list[RankPlace], message: str, tmp_path):
    with pytest.raises(ValueError, match=message):
        on_threads(places, {"id0": gpu_kernel(tmp_path)}, {"id0": FakeDriver(gpus_of(2))})


def test_a_failure_reaches_every_rank(tmp_path):
    places = gpu_places((0, 0), (1, 7))
    kernels = {f"id{m}": gpu_kernel(tmp_path / str(m)) for m in (0, 1)}
    drivers = {f"id{m}": FakeDriver(gpus_of(2)) for m in (0, 1)}
    caught = []

    def rank():
        control = context.require_control()
        machine = places[control.rank].machine
        try:
            find_topology(control, places, sysfs=kernels[machine].sysfs, source=drivers[machine])
        except ValueError as error:
            caught.append(str(error))

    dgcl.launch(rank, 2)
    assert len(caught) == 2
    assert caught[0] == caught[1]


def test_no_driver(tmp_path):
    with pytest.raises(ValueError, match="machine 'node0' cannot be described: libnvidia-ml"):
        find_topology(SingleControl(), gpu_places((0, 0)), sysfs=gpu_kernel(tmp_path).sysfs)


def test_this_rank_and_its_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0,ib1")
    assert place_of_this_rank().interface == "ib0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert place_of_this_rank().interface == ""
    assert place_of_this_rank().machine == place_of_this_rank("GPU-1").machine != ""
    assert place_of_this_rank(sysfs=kernel(tmp_path).sysfs).machine == "c0ffee"
    assert not several_machines([place_of_this_rank()] * 3)
    assert several_machines(TWO_HOSTS)


def graph() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.arange(0, 401, 4), rng.integers(0, 100, 400)


def test_auto_tells_what_it_found_in_one_line(caplog):
    def rank() -> str:
        return dgcl.build_comm_info(graph()).plan.topology.name

    with caplog.at_level(logging.INFO, logger="dgcl"):
        assert dgcl.launch(rank, 2) == ["host2", "host2"]
    assert sum(record.getMessage().startswith("this host: ") for record in caplog.records) == 1


def test_auto_over_several_machines_is_asked_of_rank_0_alone(monkeypatch):
    """The other ranks need not say what rank 0 says."""

    monkeypatch.setattr("dgcl.build.places_of_ranks", lambda control, gpu: TWO_HOSTS)

    def rank(topology: str) -> str:
        control = context.require_control()
        assert isinstance(control, ThreadControl)
        mine = {"topology": topology} if control.rank == 0 else {}
        return dgcl.build_comm_info(graph() if control.rank == 0 else None, **mine).plan.topology.name

    assert set(dgcl.launch(rank, 4, "auto")) == {"2 hosts, 4 ranks"}
    assert set(dgcl.launch(rank, 4, "uniform:4")) == {"uniform4"}
