"""What we say of NVML is what NVIDIA says: constants, structs and signatures against ``nvidia-ml-py``.

Both bindings call a library that succeeds and keeps the arguments; NVIDIA's own binding is the oracle for their kinds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dgcl.topology.detect import nvml
from dgcl.topology.detect.nvml import Nvml

nvidia = pytest.importorskip("pynvml", reason="nvidia-ml-py, of the extra dev, is missing")


def test_constants() -> None:
    assert {name: value for name, value in vars(nvml).items() if type(value) is int} == {
        "PEER_READ": np.ravel(nvidia.NVML_P2P_CAPS_INDEX_READ)[0],  # a tuple there, by a stray comma
        "PEER_WRITE": nvidia.NVML_P2P_CAPS_INDEX_WRITE,
        "PEER_NVLINK": nvidia.NVML_P2P_CAPS_INDEX_NVLINK,
        "PEER_OK": nvidia.NVML_P2P_STATUS_OK,
        "REMOTE_GPU": nvidia.NVML_NVLINK_DEVICE_TYPE_GPU,
        "REMOTE_CPU": nvidia.NVML_NVLINK_DEVICE_TYPE_IBMNPU,
        "REMOTE_SWITCH": nvidia.NVML_NVLINK_DEVICE_TYPE_SWITCH,
        "_MOST_LINKS": nvidia.NVML_NVLINK_MAX_LINKS,
        "_NOT_FOUND": nvidia.NVML_ERROR_NOT_FOUND,
        "_FABRIC_DONE": nvidia.NVML_GPU_FABRIC_STATE_COMPLETED,
    }


def test_words_for_what_keeps_peers_apart_stand_in_nvidias_order() -> None:
    assert {word: place for place, word in enumerate(nvml.PEER_STATUS)} == {
        "ok": nvidia.NVML_P2P_STATUS_OK,
        "chipset not supported": nvidia.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
        "GPU not supported": nvidia.NVML_P2P_STATUS_GPU_NOT_SUPPORTED,
        "topology not supported": nvidia.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED,
        "disabled by regkey": nvidia.NVML_P2P_STATUS_DISABLED_BY_REGKEY,
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(nvml._PciInfo, nvidia.nvmlPciInfo_t), (nvml._FabricInfo, nvidia.c_nvmlGpuFabricInfo_t)],
    ids=["PCI", "fabric"],
)
def test_structs(ours: Any, theirs: Any) -> None:
    places = [
        [(getattr(kind, field[0]).offset, getattr(kind, field[0]).size) for field in kind._fields_]
        for kind in (ours, theirs)
    ]
    if (
        ours is nvml._FabricInfo
    ):  # nvml.h: typedef unsigned char nvmlGpuFabricState_t; theirs reads the padding, too
        assert (places[0].pop(), places[1].pop()) == ((24, 1), (24, 4))
    assert places[0] == places[1]
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)


def kind(argument: Any) -> tuple[str, int]:
    """How ctypes passes an argument: by which means, and how wide."""
    if hasattr(argument, "_obj"):
        return "reference", ctypes.sizeof(argument._obj)
    if isinstance(argument, ctypes.Array):
        return "buffer", ctypes.sizeof(argument)
    return "value", 4 if isinstance(argument, int) else ctypes.sizeof(argument)  # int: as C's int


class Recorder:
    """A library that succeeds, finds two GPUs whose links are up, and keeps the kinds of all arguments."""

    def __init__(self) -> None:
        self.calls: dict[str, set[tuple[tuple[str, int], ...]]] = {}

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.calls.setdefault(name, set()).add(tuple(map(kind, arguments)))
            if name.startswith("nvmlDeviceGetCount"):
                arguments[0]._obj.value = 2
            elif name == "nvmlDeviceGetNvLinkState":
                arguments[-1]._obj.value = 1
            elif "PciInfo" in name:
                info = arguments[-1]._obj
                setattr(info, info._fields_[-1][0], b"00000000:0A:00.0")
            return 0

        return function


#: How NVIDIA's binding makes the calls that ours makes; a handle is what it hands out itself.
THEIRS: dict[str, Callable[[Any], object]] = {
    "nvmlDeviceGetCount_v2": lambda handle: nvidia.nvmlDeviceGetCount(),
    "nvmlDeviceGetHandleByIndex_v2": lambda handle: nvidia.nvmlDeviceGetHandleByIndex(0),
    "nvmlDeviceGetP2PStatus": lambda handle: nvidia.nvmlDeviceGetP2PStatus(handle, handle, 0),
    "nvmlDeviceGetPciInfo_v3": lambda handle: nvidia.nvmlDeviceGetPciInfo_v3(handle),
    "nvmlDeviceGetCudaComputeCapability": lambda handle: nvidia.nvmlDeviceGetCudaComputeCapability(handle),
    "nvmlDeviceGetUUID": lambda handle: nvidia.nvmlDeviceGetUUID(handle),
    "nvmlDeviceGetName": lambda handle: nvidia.nvmlDeviceGetName(handle),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: nvidia.nvmlDeviceGetMaxPcieLinkGeneration(handle),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: nvidia.nvmlDeviceGetMaxPcieLinkWidth(handle),
    "nvmlDeviceGetNvLinkState": lambda handle: nvidia.nvmlDeviceGetNvLinkState(handle, 0),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda handle: nvidia.nvmlDeviceGetNvLinkRemotePciInfo(handle, 0),
    "nvmlDeviceGetNvLinkVersion": lambda handle: nvidia.nvmlDeviceGetNvLinkVersion(handle, 0),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle: nvidia.nvmlDeviceGetNvLinkRemoteDeviceType(
        handle, 0
    ),
    "nvmlDeviceGetGpuFabricInfo": lambda handle: nvidia.nvmlDeviceGetGpuFabricInfo(
        handle, ctypes.byref(nvidia.c_nvmlGpuFabricInfo_t())
    ),
}


def test_every_function_is_called_as_nvidias_binding_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Recorder(), Recorder()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: ours)
    with Nvml() as opened:
        opened.gpus()
        opened.peer_status(0, 1, nvml.PEER_READ)
    monkeypatch.setattr(nvidia, "_nvmlGetFunctionPointer", lambda name: getattr(theirs, name))
    for call in THEIRS.values():
        call(ctypes.c_void_p(64))
    # Neither takes arguments.
    assert {ours.calls.pop(name) == {()} for name in ("nvmlInit_v2", "nvmlShutdown")} == {True}
    assert ours.calls == theirs.calls
