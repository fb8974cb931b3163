"""Recognises files of other tools, and refuses them with a way out."""

import re

_MATRIX = "import the text of `nvidia-smi topo -m`"
_RCCL = (
    "import RCCL's topology file instead (NCCL_TOPO_DUMP_FILE=topo.xml in the environment of any RCCL job)"
)
# Of the first kilobytes: pattern, what it is, way out.
_KNOWN = tuple(
    (re.compile(pattern, re.MULTILINE), reason)
    for pattern, reason in (
        (
            r"<!DOCTYPE\s+topology\b|<topology\b|^\W*(Machine|System|Package|Socket|NUMANode|Group\d*)\s*(L#\d|\(\S*\d)|"
            r"^depth \d+:",
            f"is the output of lstopo (hwloc), which tells no links of GPUs: {_MATRIX}",
        ),
        (
            r"<nvidia_smi_log>|<!DOCTYPE nvidia_smi_log",
            f"is `nvidia-smi -q -x`, which tells no links: {_MATRIX}",
        ),
        (r"<html|<!DOCTYPE html", "is a web page: save the text of the matrix alone"),
        (
            r"ROCm System Management Interface|ROCm SMI|^\s*GPU0\s+(0|.*\b(XGMI|PCIE)\b)",
            f"is the output of rocm-smi, of AMD GPUs: {_RCCL}",
        ),
        (
            r"^(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:|^\s*[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\s",
            f"is the output of amd-smi, of AMD GPUs: {_RCCL}",
        ),
        (
            r"NVIDIA-SMI has failed|No devices were found|command not found",
            "is an error message of nvidia-smi, and no matrix: run it where the driver works",
        ),
        (
            r"nvidia-smi\s+topo\s+(-mp|--matrix_pci)\b",
            f"is `nvidia-smi topo -mp`, which shows PCIe only: {_MATRIX}",
        ),
        (r"NVIDIA-SMI \d+\.\d+", f"is the table of nvidia-smi, which tells no links: {_MATRIX}"),
        (r"^\s*GPU \d+: .*\(UUID: GPU-[^\n]*\n\s*Link \d+:", f"is `nvidia-smi nvlink --status`: {_MATRIX}"),
        (r"^\s*GPU \d+: .*\(UUID: GPU-", f"is `nvidia-smi -L`, which tells no links: {_MATRIX}"),
        (
            r"^\s*GPU0\s+(X\s+)?(OK|CNS|GNS|TNS|NS)\b",
            f"is `nvidia-smi topo -p2p`, which tells no kinds: {_MATRIX}",
        ),
        (
            r"^\s*GPU0\b.*\bMIG\b",
            "lists MIG devices, which have no links of their own: only whole GPUs are modelled",
        ),
        (
            r"nvbandwidth Version",
            "is the output of nvbandwidth; measurements are read from p2pBandwidthLatencyTest",
        ),
        (r"\|GPU \d/\d\|", "is the output of xpu-smi, of Intel GPUs, which are not modelled"),
    )
)
_PREFIX = re.compile(r"(>|\S+[:|>])\s|(\[\d+,\d+\]<\w+>:)")
_SPELLED = 4096  # characters that are looked at
_MAGIC = (
    (b"\x1f\x8b", "is compressed with gzip: unpack it first"),
    (b"PK\x03\x04", "is a zip archive: unpack it first"),
    (b"BZh", "is compressed with bzip2: unpack it first"),
    (b"\xfd7zXZ", "is compressed with xz: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd: unpack it first"),
    (b"\x89PNG", "is a picture, not text"),
    (b"%PDF", "is a PDF file, not text"),
)


def refuse_binary(data: bytes) -> None:
    """Raise ValueError for files of well-known kinds that hold no text."""
    for magic, reason in _MAGIC:
        if data.startswith(magic):
            raise ValueError(reason)


def refuse_foreign(text: str) -> None:
    """Raise ValueError for the output of other tools, and for text in which each line has a prefix."""
    start = text[:_SPELLED]
    for pattern, reason in _KNOWN:
        if pattern.search(start):
            raise ValueError(reason)
    words = [line for line in start.splitlines() if line.strip()][:3]
    prefixes = {match[0].strip() for line in words if (match := _PREFIX.match(line.strip() + " "))}
    if len(words) > 2 and len(prefixes) == 1 and all(_PREFIX.match(line.strip()) for line in words):
        raise ValueError(
            f"every line begins with {prefixes.pop()!r}, as mail, pdsh or mpirun put it: the text of one "
            f"machine is needed, without that"
        )
