"""A small binding to NVIDIA's management library (NVML) through ctypes: the functions that a topology needs.

The driver brings ``libnvidia-ml.so.1``, so that there is nothing to install. :class:`NvmlUnavailable` says if the
library is missing, does not fit the driver, or may not be used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dgcl.topology.machine import bus_id

#: Capabilities that :meth:`GpuSource.peer_status` is asked for, and the status that means yes.
PEER_READ, PEER_WRITE, PEER_NVLINK = 0, 1, 2
PEER_OK = 0
PEER_STATUS = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "topology not supported",
    "disabled by regkey",
)

#: What is at the other end of an NVLink.
REMOTE_GPU, REMOTE_CPU, REMOTE_SWITCH = 0, 1, 2

_MOST_LINKS = 36
_NOT_FOUND = 6
_FABRIC_DONE = 3


class NvmlUnavailable(Exception):
    """NVML cannot be used here; the message says why."""


@dataclass(frozen=True)
class NvmlLink:
    """An NVLink that is up: its version, what is at its other end, and where (``""``: unknown)."""

    version: int
    remote: int | None
    address: str


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU of the machine, whether the job may use it or not.

    Attributes:
        index: NVML's number, in the order of PCI addresses.
        uuid: ``GPU-...``.
        address: PCI address.
        name: The product's name.
        sm: Compute capability, 90 for 9.0.
        pcie_generation, pcie_width: The best that GPU and slot can do together; None: unknown.
        links: Its NVLinks that are up.
        fabric: Names the domain of NVSwitches that it shares with GPUs of other machines; ``""``: none.
    """

    index: int
    uuid: str
    address: str
    name: str
    sm: int
    pcie_generation: int | None = None
    pcie_width: int | None = None
    links: tuple[NvmlLink, ...] = ()
    fabric: str = ""


class GpuSource(Protocol):
    """What detection asks of the driver."""

    def gpus(self) -> list[NvmlGpu]:
        """All GPUs, in the order of their indices."""

    def peer_status(self, a: int, b: int, capability: int) -> int:
        """Whether GPU ``a`` can reach GPU ``b``: ``PEER_OK``, or a position in ``PEER_STATUS``."""


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("ids", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _FabricInfo(ctypes.Structure):
    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class Nvml:
    """The real library. Use as a context manager."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError:
            raise NvmlUnavailable(
                f"{library} is not here: no NVIDIA driver, or a container that was not given it"
            ) from None
        self._handles: list[ctypes.c_void_p] = []

    def __enter__(self) -> Nvml:
        self._check(self._call("nvmlInit_v2"), "cannot be started")
        count = ctypes.c_uint()
        self._check(self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)), "cannot count the GPUs")
        for index in range(count.value):
            handle = ctypes.c_void_p()
            status = self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self._check(status, f"cannot open GPU {index}")
            self._handles.append(handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("nvmlShutdown")

    def gpus(self) -> list[NvmlGpu]:
        """All GPUs; what the driver does not report has its default."""
        return [self._gpu(index) for index in range(len(self._handles))]

    def peer_status(self, a: int, b: int, capability: int) -> int:
        """See :class:`GpuSource`; a driver that does not know says ``len(PEER_STATUS)``."""
        value = ctypes.c_int()
        status = self._call(
            "nvmlDeviceGetP2PStatus",
            self._handles[a],
            self._handles[b],
            ctypes.c_int(capability),
            ctypes.byref(value),
        )
        return value.value if status == 0 else len(PEER_STATUS)

    def _gpu(self, index: int) -> NvmlGpu:
        info = _PciInfo()
        self._check(
            self._device("nvmlDeviceGetPciInfo_v3", index, ctypes.byref(info)),
            f"does not tell where GPU {index} is",
        )
        address = bus_id(info.bus_id.decode("ascii", "replace"))
        if address is None:
            raise NvmlUnavailable(f"NVML gives GPU {index} the PCI address {info.bus_id!r}, which is none")
        major, minor = ctypes.c_int(), ctypes.c_int()
        told = self._device(
            "nvmlDeviceGetCudaComputeCapability", index, ctypes.byref(major), ctypes.byref(minor)
        )
        return NvmlGpu(
            index=index,
            uuid=self._text("nvmlDeviceGetUUID", index),
            address=address,
            name=self._text("nvmlDeviceGetName", index),
            sm=10 * major.value + minor.value if told == 0 else 0,
            pcie_generation=self._number("nvmlDeviceGetMaxPcieLinkGeneration", index),
            pcie_width=self._number("nvmlDeviceGetMaxPcieLinkWidth", index),
            links=tuple(self._links(index)),
            fabric=self._fabric(index),
        )

    def _links(self, index: int) -> list[NvmlLink]:
        links = []
        for number in range(_MOST_LINKS):
            if self._link_number("nvmlDeviceGetNvLinkState", index, number) != 1:
                continue  # down, or beyond the last
            info = _PciInfo()
            told = self._device(
                "nvmlDeviceGetNvLinkRemotePciInfo_v2", index, ctypes.c_uint(number), ctypes.byref(info)
            )
            address = bus_id(info.bus_id.decode("ascii", "replace")) if told == 0 else None
            links.append(
                NvmlLink(
                    version=self._link_number("nvmlDeviceGetNvLinkVersion", index, number) or 0,
                    remote=self._link_number("nvmlDeviceGetNvLinkRemoteDeviceType", index, number),
                    address=address or "",
                )
            )
        return links

    def _fabric(self, index: int) -> str:
        info = _FabricInfo()
        if self._device("nvmlDeviceGetGpuFabricInfo", index, ctypes.byref(info)) != 0:
            return ""
        cluster = bytes(info.cluster)
        if info.state != _FABRIC_DONE or info.status != 0 or not any(cluster):
            return ""
        return f"{cluster.hex()}.{info.clique}"

    def _link_number(self, function: str, index: int, link: int) -> int | None:
        value = ctypes.c_uint()
        status = self._device(function, index, ctypes.c_uint(link), ctypes.byref(value))
        return value.value if status == 0 else None

    def _number(self, function: str, index: int) -> int | None:
        value = ctypes.c_uint()
        return (
            value.value if self._device(function, index, ctypes.byref(value)) == 0 and value.value else None
        )

    def _text(self, function: str, index: int) -> str:
        buffer = ctypes.create_string_buffer(96)
        status = self._device(function, index, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace") if status == 0 else ""

    def _device(self, function: str, index: int, *arguments: Any) -> int:
        return self._call(function, self._handles[index], *arguments)

    def _call(self, function: str, *arguments: Any) -> int:
        """NVML's status; that of "not found" where an old driver lacks the function."""
        found: Callable[..., int] | None = getattr(self._library, function, None)
        return _NOT_FOUND if found is None else int(found(*arguments))

    def _check(self, status: int, what: str) -> None:
        if status != 0:
            describe = getattr(self._library, "nvmlErrorString", None)
            if describe is None:
                raise NvmlUnavailable(f"NVML {what} (status {status})")
            describe.restype = ctypes.c_char_p
            raise NvmlUnavailable(f"NVML {what}: {describe(status).decode('ascii', 'replace')}")
