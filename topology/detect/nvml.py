"""Reads GPUs and their NVLinks from NVIDIA's management library (NVML), through its Python binding ``nvidia-ml-py``.

The driver brings the library, the extra ``dgcl[nvidia]`` the binding. :class:`NvmlUnavailable` says if either is
missing, does not fit the driver, or may not be used.
Called by `gpu_machine`, `visible`, `dgcl/ranks/machines` and `dgcl/cli/topo_detect` (both through `__init__`). Free to
change while functions that an old driver lacks cost only what they tell, and a missing library, binding or right is
named (`tests/topology/detect/test_nvml.py`).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from dgcl.topology.machine import bus_id

#: What :meth:`Nvml.allows` is asked for.
PEER_READ, PEER_WRITE, PEER_NVLINK = 0, 1, 2

#: What is at the other end of an NVLink.
REMOTE_GPU, REMOTE_CPU, REMOTE_SWITCH = 0, 1, 2


class NvmlUnavailable(Exception):
    """NVML cannot be used here; the message says why."""


@dataclass(frozen=True)
class NvmlLink:
    """An NVLink that is up: what is at its other end, and where (``""``: unknown)."""

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


class Nvml:
    """The real library. Use as a context manager."""

    def __enter__(self) -> Nvml:
        try:
            import pynvml
        except ImportError:
            raise NvmlUnavailable("nvidia-ml-py is missing: pip install 'dgcl[nvidia]'") from None
        self._library: Any = pynvml
        try:
            pynvml.nvmlInit()
            numbers = range(pynvml.nvmlDeviceGetCount())
            self._handles = [*map(pynvml.nvmlDeviceGetHandleByIndex, numbers)]
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(
                f"libnvidia-ml.so.1: {error} (is there an NVIDIA driver, and was this container given it?)"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("nvmlShutdown")

    def gpus(self) -> list[NvmlGpu]:
        """All GPUs; what the driver does not report has its default."""
        return [self._gpu(index, handle) for index, handle in enumerate(self._handles)]

    def allows(self, a: int, b: int, capability: int) -> bool:
        """Whether GPU ``a`` can reach GPU ``b`` in this way; not where the driver does not know."""
        return bool(self._ask("nvmlDeviceGetP2PStatus", self._handles[a], self._handles[b], capability) == 0)

    def _gpu(self, index: int, handle: Any) -> NvmlGpu:
        address = self._address(self._ask("nvmlDeviceGetPciInfo", handle))
        if not address:
            raise NvmlUnavailable(f"NVML does not say at which PCI address GPU {index} is")
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)
        return NvmlGpu(
            index=index,
            uuid=self._ask("nvmlDeviceGetUUID", handle) or "",
            address=address,
            name=self._ask("nvmlDeviceGetName", handle) or "",
            sm=10 * major + minor,
            pcie_generation=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle) or None,
            pcie_width=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle) or None,
            links=tuple(
                NvmlLink(
                    self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
                    self._address(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)),
                )
                for link in range(self._library.NVML_NVLINK_MAX_LINKS)
                if self._ask("nvmlDeviceGetNvLinkState", handle, link) == 1
            ),
            fabric=self._fabric(handle),
        )

    def _fabric(self, handle: Any) -> str:
        info = self._library.c_nvmlGpuFabricInfo_t()
        self._ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
        cluster = bytes(info.clusterUuid)
        # The state is one byte in NVIDIA's header, and four with its padding in its binding.
        done = info.state & 0xFF == self._library.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == 0
        return f"{cluster.hex()}.{info.cliqueId}" if done and any(cluster) else ""

    def _address(self, info: Any) -> str:
        return (info and bus_id(info.busId)) or ""

    def _ask(self, function: str, *arguments: Any) -> Any:
        """What NVML answers; None where this driver or this GPU does not know."""
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError:
            return None
