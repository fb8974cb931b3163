"""What the kernel's files say, and that nothing breaks where they are missing."""

import pytest

from dgcl.topology.detect import Sysfs
from dgcl.topology.machine import Net
from dgcl.topology.rates import CpuBus
from tests.support.fake_host import AMD, ARM, INTEL, POWER, FakeKernel


def test_processors_and_memory(tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.processors(2, 12)
    facts = kernel.sysfs.host()
    assert (facts.sockets, facts.cpus, facts.numa_nodes) == (2, 24, (0, 1))
    assert facts.memory_bytes == 131072000 * 1024
    assert str(facts) == "2 sockets, 24 processors, 134 GB of memory (Xeon 8480)"
    kernel.processors(1, 12, nodes=4)
    assert kernel.sysfs.machine_id() == "c0ffee"


def test_numa_nodes_are_told_where_they_are_not_the_sockets(tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.processors(1, 2, nodes=4)
    assert str(kernel.sysfs.host()).startswith("1 socket, 2 processors, 4 NUMA nodes, ")


@pytest.mark.parametrize(
    "info, bus",
    [
        (INTEL, CpuBus("UPI", 22.0)),
        (INTEL.replace("143", "79"), CpuBus("QPI", 6.0)),
        (INTEL.replace("143", "85"), CpuBus("UPI", 10.0)),
        (INTEL.replace("143", "207"), CpuBus("UPI", 40.0)),
        (AMD, CpuBus("IF", 24.0)),
        (AMD.replace("25", "26"), CpuBus("IF", 32.0)),
        (AMD.replace("25", "23"), CpuBus("IF", 16.0)),
        (POWER, CpuBus("X-bus", 32.0)),
        (ARM, CpuBus("SYS", 6.0)),
        ("nothing known", CpuBus("SYS", 10.0)),
    ],
)
def test_what_joins_the_processors(info: str, bus: CpuBus, tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.processors(2, 1, info=info)
    assert kernel.sysfs.host().bus == bus


def test_devices_and_the_bridges_above_them(tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.pci("0000:3a:00.0", "0000:3b:00.0", "0000:3c:08.0", "0000:3d:00.0", numa=1, width=8)
    sysfs = kernel.sysfs
    assert sysfs.bridges_above("0000:3d:00.0") == ["0000:3a:00.0", "0000:3b:00.0", "0000:3c:08.0"]
    assert sysfs.bridges_above("0000:99:00.0") is None
    assert (sysfs.numa_of("0000:3d:00.0"), sysfs.pcie_of("0000:3d:00.0")) == (1, 12.0)


@pytest.mark.parametrize(
    "speed, width",
    [("Unknown", 16), ("16.0 GT/s PCIe", 255), ("17 GT/s", 16), ("", 16), ("1.2.3 GT/s", 16), (". GT/s", 16)],
)
def test_speeds_that_are_none(speed: str, width: int, tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.pci("0000:01:00.0", numa=None, speed=speed, width=width)
    assert kernel.sysfs.pcie_of("0000:01:00.0") is None
    assert kernel.sysfs.numa_of("0000:01:00.0") is None


def test_network_ports(tmp_path):
    kernel = FakeKernel(tmp_path)
    cards = [kernel.pci("0000:00:00.0", f"0000:0{i}:00.0") for i in range(1, 6)]
    kernel.infiniband("mlx5_0", cards[0])
    kernel.infiniband("mlx5_0", cards[0], port=2, rate="100 Gb/sec (2X HDR)")
    kernel.infiniband("mlx5_1", cards[1], layer="Ethernet", rate="25 Gb/sec (1X EDR)")
    kernel.infiniband("mlx5_2", cards[2], state="1: DOWN")
    kernel.ethernet("eth0", cards[3])
    kernel.ethernet("ens1", cards[1])  # the same card as mlx5_1
    kernel.ethernet("eth1", cards[4], speed="-1")
    kernel.ethernet("lo", None)
    kernel.ethernet("eth2", cards[2], state="down")
    assert kernel.sysfs.network_ports() == {
        "0000:01:00.0": (Net("mlx5_0", 25.0, "IB"), Net("mlx5_0:2", 12.5, "IB")),
        "0000:02:00.0": (Net("mlx5_1", 3.125, "Eth"),),
        "0000:04:00.0": (Net("eth0", 3.125, "Eth"),),
        "0000:05:00.0": (Net("eth1", None, "Eth"),),
    }


def test_virtual_cards_hang_one_level_deeper(tmp_path):
    kernel = FakeKernel(tmp_path)
    card = kernel.pci("0000:00:03.0")
    (card / "virtio0").mkdir()
    kernel.ethernet("eth0", card / "virtio0")
    assert list(kernel.sysfs.network_ports()) == ["0000:00:03.0"]


def test_nothing_to_read(tmp_path):
    sysfs = Sysfs(tmp_path / "nowhere")
    assert str(sysfs.host()) == "1 socket, 1 processor"
    assert sysfs.network_ports() == {}
    assert sysfs.bridges_above("0000:01:00.0") is None
    assert sysfs.machine_id() == ""


def test_this_machine():
    facts = Sysfs().host()
    assert facts.cpus >= 1
    assert facts.sockets >= 1
    assert str(facts)
