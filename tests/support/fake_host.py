"""A driver and a kernel that say what a test wants them to say."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from dgcl.topology.detect import NvmlGpu, Sysfs
from dgcl.topology.detect.nvml import REMOTE_GPU, REMOTE_SWITCH, NvmlLink


class FakeDriver:
    """GPUs, and the peer status of pairs; 0 (yes) for pairs that are not named."""

    def __init__(self, gpus: list[NvmlGpu], peers: Mapping[tuple[int, int, int], int] | None = None):
        self._gpus, self._peers = gpus, dict(peers or {})

    def gpus(self) -> list[NvmlGpu]:
        return self._gpus

    def allows(self, a: int, b: int, capability: int) -> bool:
        return self._peers.get((a, b, capability), 0) == 0


def gpu(
    index: int, address: str, links: Iterable[NvmlLink] = (), *, sm: int = 80, fabric: str = ""
) -> NvmlGpu:
    return NvmlGpu(index, f"GPU-{index:04d}-abcd", address, "A100", sm, 4, 16, tuple(links), fabric)


def to_gpu(address: str, count: int) -> list[NvmlLink]:
    return [NvmlLink(REMOTE_GPU, address)] * count


def to_switch(count: int, address: str = "0000:c1:00.0") -> list[NvmlLink]:
    return [NvmlLink(REMOTE_SWITCH, address)] * count


class FakeKernel:
    """A folder that looks like ``/``."""

    def __init__(self, root: Path):
        self.root = root

    @property
    def sysfs(self) -> Sysfs:
        return Sysfs(self.root)

    def write(self, path: str, text: object):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def pci(self, *path: str, numa: int | None = 0, speed: str = "16.0 GT/s PCIe", width: int = 16) -> Path:
        """A device at the end of a path of bridges, and the bridges."""
        folder = self.root / f"sys/devices/pci{path[0][:7]}"
        for address in path:
            folder = folder / address
            folder.mkdir(parents=True, exist_ok=True)
            link = self.root / "sys/bus/pci/devices" / address
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(folder)
                self.write(f"sys/bus/pci/devices/{address}/max_link_speed", speed)
                self.write(f"sys/bus/pci/devices/{address}/max_link_width", width)
                self.write(f"sys/bus/pci/devices/{address}/numa_node", -1 if numa is None else numa)
        return folder

    def infiniband(
        self,
        name: str,
        card: Path,
        *,
        state: str = "4: ACTIVE",
        rate: str = "200 Gb/sec (4X HDR)",
        layer: str = "InfiniBand",
        port: int = 1,
    ):
        folder = f"sys/class/infiniband/{name}"
        self.write(f"{folder}/ports/{port}/state", state)
        self.write(f"{folder}/ports/{port}/rate", rate)
        self.write(f"{folder}/ports/{port}/link_layer", layer)
        if not (self.root / folder / "device").is_symlink():
            (self.root / folder / "device").symlink_to(card)

    def ethernet(self, name: str, card: Path | None, *, state: str = "up", speed: str = "25000"):
        self.write(f"sys/class/net/{name}/operstate", state)
        self.write(f"sys/class/net/{name}/speed", speed)
        if card is not None:
            (self.root / f"sys/class/net/{name}/device").symlink_to(card)

    def processors(self, sockets: int, cores: int, *, nodes: int | None = None, info: str = ""):
        for cpu in range(sockets * cores):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", cpu // cores)
        for node in range(sockets if nodes is None else nodes):
            self.write(f"sys/devices/system/node/node{node}/cpulist", "0-3")
        self.write("proc/meminfo", "MemTotal:       131072000 kB\nMemFree: 1 kB")
        self.write("proc/cpuinfo", info or INTEL)
        self.write("proc/sys/kernel/random/boot_id", "c0ffee")


INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon 8480\n"
)
AMD = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 1\nmodel name : EPYC 7713\n"
POWER = "processor : 0\ncpu : POWER9, altivec supported\n"
ARM = "processor : 0\nCPU implementer : 0x41\n"
