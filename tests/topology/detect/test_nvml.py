"""Reading NVML, whose C functions are Python ones here that fill what they are handed as the driver would."""

import sys
from typing import Any

import pynvml
import pytest

from dgcl.topology.detect.nvml import PEER_NVLINK, Nvml, NvmlLink, NvmlUnavailable

OK, NOT_SUPPORTED, NO_PERMISSION = 0, 3, 4


class FakeLibrary:
    """Two GPUs, joined by two NVLinks each to the other and one to an NVSwitch; link 3 is down."""

    def __init__(self) -> None:
        self.started = 0

    def nvmlInitWithFlags(self, flags: int) -> int:
        self.started += 1
        return OK

    def nvmlShutdown(self) -> int:
        self.started -= 1
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.contents = pynvml.struct_c_nvmlDevice_t()
        self.handles = {**getattr(self, "handles", {}), index.value: handle._obj}
        return OK

    def _index(self, handle: Any) -> int:
        return next(index for index, other in self.handles.items() if other is handle)

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        info._obj.busId = f"00000000:{self._index(handle) + 10:02X}:00.0".encode()
        return OK

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 8, 6
        return OK

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = f"GPU-{self._index(handle)}".encode()
        return OK

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        value._obj.value = 4
        return OK

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, value: Any) -> int:
        value._obj.value = int(link < 3)
        return OK if link <= 3 else NOT_SUPPORTED

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: Any, value: Any) -> int:
        value._obj.value = 0 if link < 2 else 2
        return OK

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: Any, info: Any) -> int:
        other = 11 - self._index(handle) if link < 2 else 0xC1
        info._obj.busId = f"00000000:{other:02X}:00.0".encode()
        return OK

    def nvmlDeviceGetGpuFabricInfo(self, handle: Any, info: Any) -> int:
        info._obj.state, info._obj.cliqueId = 0x55000003, 7  # behind its byte is padding
        info._obj.clusterUuid[:] = range(16)
        return OK

    def nvmlDeviceGetP2PStatus(self, a: Any, b: Any, capability: Any, value: Any) -> int:
        value._obj.value = 0 if capability == PEER_NVLINK else 3
        return OK


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """A driver that lacks every function that is not here."""
    fake = FakeLibrary()
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)

    def function(name: str) -> Any:
        if not hasattr(fake, name):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return getattr(fake, name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", function)
    return fake


def test_what_is_read(library: FakeLibrary):
    with Nvml() as nvml:
        first, second = nvml.gpus()
        assert library.started == 1
        assert [nvml.allows(0, 1, capability) for capability in (0, PEER_NVLINK)] == [False, True]
    assert library.started == 0
    assert (first.index, first.uuid, first.address, first.name) == (0, "GPU-0", "0000:0a:00.0", "")
    assert (first.sm, first.pcie_generation, first.pcie_width) == (86, 4, None)
    to_second, to_switch = NvmlLink(0, "0000:0b:00.0"), NvmlLink(2, "0000:c1:00.0")
    assert first.links == (to_second, to_second, to_switch)
    assert first.fabric == "000102030405060708090a0b0c0d0e0f.7"
    assert second.links[0].address == first.address


def test_functions_that_an_old_driver_lacks(library: FakeLibrary, monkeypatch):
    for name in ("NvLinkRemoteDeviceType", "GpuFabricInfo", "P2PStatus"):
        monkeypatch.delattr(FakeLibrary, f"nvmlDeviceGet{name}")
    with Nvml() as nvml:
        first = nvml.gpus()[0]
        assert (first.links[0].remote, first.fabric) == (None, "")
        assert not nvml.allows(0, 1, PEER_NVLINK)


@pytest.mark.parametrize(
    "function, message",
    [
        ("nvmlInitWithFlags", "so.1: Insufficient Permissions"),
        ("nvmlDeviceGetCount_v2", "so.1: Insufficient Permissions"),
        ("nvmlDeviceGetHandleByIndex_v2", "so.1: Insufficient Permissions"),
        ("nvmlDeviceGetPciInfo_v3", "NVML does not say at which PCI address GPU 0 is"),
    ],
)
def test_no_rights(library: FakeLibrary, monkeypatch, function: str, message: str):
    monkeypatch.setattr(FakeLibrary, function, lambda *_: NO_PERMISSION)
    with pytest.raises(NvmlUnavailable, match=message), Nvml() as nvml:
        nvml.gpus()


def test_no_library(monkeypatch):
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    with pytest.raises(NvmlUnavailable, match=r"so.1: NVML Shared Library Not Found \(is there"):
        Nvml().__enter__()


def test_no_binding(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match=r"nvidia-ml-py is missing: pip install 'dgcl\[nvidia\]'"):
        Nvml().__enter__()
