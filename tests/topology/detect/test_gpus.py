"""GPUs of a machine: which links are modelled, where everything hangs, what is told."""

import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest

from dgcl.topology import detect
from dgcl.topology.detect import NvmlUnavailable
from dgcl.topology.detect.nvml import PEER_NVLINK, PEER_READ, PEER_WRITE, REMOTE_CPU, NvmlLink
from dgcl.topology.draft import Imported
from tests.support.fake_host import FakeDriver, FakeKernel, gpu, to_gpu, to_switch
from tests.support.importer_cases import wires
from tests.support.samples import named

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("3d", "3e", "8d", "8e"))


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    """Two sockets; on each two GPUs and a NIC behind one PCIe switch."""
    kernel = FakeKernel(tmp_path)
    kernel.processors(2, 8)
    for numa, (root, first, second) in enumerate((("3a", A, B), ("8a", C, D))):
        up = f"0000:{root[0]}b:00.0"
        for port, address in enumerate((first, second)):
            kernel.pci(f"0000:{root}:00.0", up, f"0000:{root[0]}c:0{port}.0", address, numa=numa)
        card = kernel.pci(
            f"0000:{root}:00.0", up, f"0000:{root[0]}c:07.0", f"0000:{root[0]}f:00.0", numa=numa
        )
        kernel.infiniband(f"mlx5_{numa}", card)
    return kernel


def found(kernel: FakeKernel, driver: FakeDriver, visible: str | None = "0,1,2,3") -> Imported:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "Nvml", lambda: nullcontext(driver))
        patch.setattr(detect, "Sysfs", lambda: kernel.sysfs)
        if visible is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        else:
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return detect.detect_gpus("t")


def deny(
    pairs: list[tuple[int, int]], *capabilities: int, status: int = 1
) -> dict[tuple[int, int, int], int]:
    return {(a, b, way): status for pair in pairs for a, b in (pair, pair[::-1]) for way in capabilities}


def test_the_pcie_tree_and_the_nics(kernel: FakeKernel):
    driver = FakeDriver([gpu(i, address) for i, address in enumerate((A, B, C, D))])
    imported = found(kernel, driver)
    assert wires(imported.topology) == {
        ("pci-3b:00.0", "cpu0", "PCIe"): 24.0,
        ("gpu0", "pci-3b:00.0", "PCIe"): 24.0,
        ("gpu1", "pci-3b:00.0", "PCIe"): 24.0,
        ("mlx5_0", "pci-3b:00.0", "PCIe"): 24.0,
        ("mlx5_0", "mlx5_0.port", "IB"): 25.0,
        ("pci-8b:00.0", "cpu1", "PCIe"): 24.0,
        ("gpu2", "pci-8b:00.0", "PCIe"): 24.0,
        ("gpu3", "pci-8b:00.0", "PCIe"): 24.0,
        ("mlx5_1", "pci-8b:00.0", "PCIe"): 24.0,
        ("mlx5_1", "mlx5_1.port", "IB"): 25.0,
        ("cpu0", "cpu1", "UPI"): 22.0,
    }
    assert [(d.name, d.socket) for d in imported.topology.devices] == [
        ("gpu0", 0), ("gpu1", 0), ("gpu2", 1), ("gpu3", 1),
    ]  # fmt: skip
    assert imported.notes == ()


JOINED = [gpu(0, A, to_gpu(B, 4)), gpu(1, B, to_gpu(A, 4)), gpu(2, C), gpu(3, D)]


def test_direct_nvlinks(kernel: FakeKernel):
    driver = FakeDriver(JOINED)
    assert wires(found(kernel, driver).topology)["gpu0", "gpu1", "NV4"] == pytest.approx(4 * 22.8)


def test_nvlinks_that_are_up_but_denied_are_left_out(kernel: FakeKernel):
    imported = found(kernel, FakeDriver(JOINED, deny([(0, 1)], PEER_NVLINK)))
    assert {kind for _, _, kind in wires(imported.topology)} == {"PCIe", "IB", "UPI"}
    assert any(
        "4 NVLinks to GPU 1 are up, but the driver denies peer access" in note for note in imported.notes
    )


@named("remote, address", {"told": (2, "0000:c1:00.0"), "in a virtual machine": (None, "")})
def test_nvswitches(kernel: FakeKernel, remote: int | None, address: str):
    links = [NvmlLink(remote, address)] * 12
    driver = FakeDriver([gpu(i, where, links) for i, where in enumerate((A, B, C, D))])
    ports = {ends: rate for ends, rate in wires(found(kernel, driver).topology).items() if ends[2] == "NV12"}
    assert set(ports) == {(f"gpu{i}", "nvswitch", "NV12") for i in range(4)}
    assert list(ports.values()) == pytest.approx([273.6] * 4)


@named(
    "denied, switches, note",
    {
        "no fabric manager": (
            list(itertools.combinations(range(4), 2)),
            [],
            "48 NVLinks to NVSwitches are up, but",
        ),
        "islands": (
            [(a, b) for a in (0, 1) for b in (2, 3)],
            ["nvswitch0", "nvswitch0", "nvswitch1", "nvswitch1"],
            "",
        ),
        "some pairs": ([(0, 1)], [], "NVSwitches join some pairs of GPUs and deny others"),
    },
)
def test_nvswitches_that_join_not_all(
    kernel: FakeKernel, denied: list[tuple[int, int]], switches: list[str], note: str
):
    gpus = [gpu(i, address, to_switch(12)) for i, address in enumerate((A, B, C, D))]
    imported = found(kernel, FakeDriver(gpus, deny(denied, PEER_NVLINK)))
    assert [end for _, end, kind in sorted(wires(imported.topology)) if kind == "NV12"] == switches
    assert any(note in text for text in (*imported.notes, ""))


def test_links_to_the_processor(kernel: FakeKernel):
    driver = FakeDriver([gpu(0, A, [NvmlLink(REMOTE_CPU, "")] * 3, sm=70), gpu(1, C, sm=70)])
    assert wires(found(kernel, driver, "0,1").topology)["gpu0", "cpu0", "NV3"] == pytest.approx(72.6)


def test_pairs_without_peer_access_are_told(kernel: FakeKernel):
    driver = FakeDriver(
        [gpu(0, A), gpu(1, B), gpu(2, C)], deny([(0, 2), (1, 2)], PEER_READ, PEER_WRITE, status=3)
    )
    notes = found(kernel, driver, "0,1,2").notes
    assert notes == (
        "2 pairs of GPUs have no peer access over PCIe: rows between them are "
        "staged in host memory, on the same wires",
    )


def test_visible_gpus_alone_and_in_their_order(kernel: FakeKernel):
    imported = found(kernel, FakeDriver(JOINED), "GPU-0003,0")
    assert [device.name for device in imported.topology.devices] == ["gpu3", "gpu0"]
    assert "NV4" not in {kind for _, _, kind in wires(imported.topology)}
    assert any("lead to 0000:3e:00.0, which is no other GPU here" in note for note in imported.notes)


def test_a_virtual_machine_without_pcie_tree_and_numa(tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.processors(1, 4)
    for address in ("0000:00:05.0", "0000:00:06.0"):
        kernel.pci(address, numa=None)
    driver = FakeDriver([gpu(0, "0000:00:05.0"), gpu(1, "0000:00:06.0")])
    imported = found(kernel, driver, "0,1")
    assert set(wires(imported.topology)) == {("gpu0", "cpu0", "PCIe"), ("gpu1", "cpu0", "PCIe")}
    assert imported.notes == ()


def test_devices_without_a_node_on_a_machine_of_several(tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.processors(2, 4)
    kernel.pci(A, numa=None)
    kernel.pci(C, numa=1)
    imported = found(kernel, FakeDriver([gpu(0, A), gpu(1, C)]), "0,1")
    assert {("gpu0", "cpu", "PCIe"), ("gpu1", "cpu1", "PCIe")} <= set(wires(imported.topology))
    assert "1 devices do not tell their NUMA node: they have one of their own here" in imported.notes


@pytest.mark.parametrize(
    "gpus, visible, message",
    [
        ([], None, "no GPU may be used: there are none"),
        ([gpu(0, A)], "", "CUDA_VISIBLE_DEVICES='' shows none of 1"),
    ],
)
def test_no_gpu(kernel: FakeKernel, gpus: list[object], visible: str | None, message: str, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(NvmlUnavailable, match=message):
        found(kernel, FakeDriver(gpus), visible)  # type: ignore[arg-type]
