"""The binding to NVML, against a library of Python functions that fill what they are given as NVML would."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dgcl.topology.detect.nvml import PEER_NVLINK, PEER_STATUS, Nvml, NvmlLink, NvmlUnavailable

OK, NOT_SUPPORTED, NO_PERMISSION = 0, 3, 4


class FakeLibrary:
    """Two GPUs, joined by two NVLinks each to the other and one to an NVSwitch; link 3 is down."""

    def __init__(self) -> None:
        self.started = 0

    def nvmlInit_v2(self) -> int:
        self.started += 1
        return OK

    def nvmlShutdown(self) -> int:
        self.started -= 1
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = 100 + index.value
        return OK

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        info._obj.bus_id = f"00000000:{handle.value - 100 + 10:02X}:00.0".encode()
        return OK

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 8, 6
        return OK

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = f"GPU-{handle.value}".encode()
        return OK

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        return NOT_SUPPORTED

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        value._obj.value = 4
        return OK

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, value: Any) -> int:
        if link.value > 3:
            return NOT_SUPPORTED
        value._obj.value = int(link.value < 3)
        return OK

    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: Any, value: Any) -> int:
        value._obj.value = 3
        return OK

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: Any, value: Any) -> int:
        value._obj.value = 0 if link.value < 2 else 2
        return OK

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: Any, info: Any) -> int:
        other = 10 + (101 - handle.value) if link.value < 2 else 0xC1
        info._obj.bus_id = f"00000000:{other:02X}:00.0".encode()
        return OK

    def nvmlDeviceGetGpuFabricInfo(self, handle: Any, info: Any) -> int:
        info._obj.state, info._obj.clique = 3, 7
        info._obj.cluster[:] = range(16)
        return OK

    def nvmlDeviceGetP2PStatus(self, a: Any, b: Any, capability: Any, value: Any) -> int:
        value._obj.value = 0 if capability.value == PEER_NVLINK else 3
        return OK

    class nvmlErrorString:
        restype: Any = None

        def __new__(cls, status: int) -> Any:
            return f"error {status}".encode()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    return fake


def test_what_is_read(library: FakeLibrary) -> None:
    with Nvml() as nvml:
        first, second = nvml.gpus()
        assert library.started == 1
        assert [nvml.peer_status(0, 1, capability) for capability in (0, PEER_NVLINK)] == [3, 0]
    assert library.started == 0
    assert (first.index, first.uuid, first.address, first.name, first.sm) == (
        0,
        "GPU-100",
        "0000:0a:00.0",
        "",
        86,
    )
    assert (first.pcie_generation, first.pcie_width) == (4, None)
    assert first.links == (
        NvmlLink(3, 0, "0000:0b:00.0"),
        NvmlLink(3, 0, "0000:0b:00.0"),
        NvmlLink(3, 2, "0000:c1:00.0"),
    )
    assert first.fabric == "000102030405060708090a0b0c0d0e0f.7"
    assert second.links[0].address == first.address


def test_functions_that_an_old_driver_lacks(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetP2PStatus",
    ):
        monkeypatch.delattr(FakeLibrary, name)
    with Nvml() as nvml:
        first = nvml.gpus()[0]
        assert (first.links[0].remote, first.fabric) == (None, "")
        assert nvml.peer_status(0, 1, PEER_NVLINK) == len(PEER_STATUS)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nvmlInit_v2", "NVML cannot be started: error 4"),
        ("nvmlDeviceGetCount_v2", "NVML cannot count the GPUs: error 4"),
        ("nvmlDeviceGetHandleByIndex_v2", "NVML cannot open GPU 0: error 4"),
        ("nvmlDeviceGetPciInfo_v3", "NVML does not tell where GPU 0 is: error 4"),
    ],
)
def test_no_rights(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch, function: str, message: str
) -> None:
    monkeypatch.setattr(FakeLibrary, function, lambda *_: NO_PERMISSION)
    with pytest.raises(NvmlUnavailable, match=message), Nvml() as nvml:
        nvml.gpus()


def test_no_library() -> None:
    with pytest.raises(
        NvmlUnavailable, match=r"libnothing.so.9 is not here: no NVIDIA driver, or a container"
    ):
        Nvml("libnothing.so.9")
