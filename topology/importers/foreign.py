"""Recognises output of other tools (lstopo, rocm-smi, web pages, ...) and refuses it, with what to import instead.

Only the first 4096 characters are looked at. Compressed files are refused, too.
Called by `files`. Free to change while each tool's output is refused by what it is, however it is spelled or encoded
(`tests/topology/importers/test_foreign.py`), and a text that can be imported is not
(`tests/topology/importers/test_shared_files.py`).
"""

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
        (r"<html|<!DOCTYPE html", "is a web page: save the text of the matrix alone"),
        (
            r"ROCm System Management Interface|ROCm SMI|^\s*GPU0\s+(0|.*\b(XGMI|PCIE)\b)|"
            r"^(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:|^\s*[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\s",
            f"is the output of rocm-smi or amd-smi, of AMD GPUs: {_RCCL}",
        ),
        (
            r"NVIDIA-SMI has failed|No devices were found|command not found",
            "is an error message of nvidia-smi, and no matrix: run it where the driver works",
        ),
        (
            r"<nvidia_smi_log>|<!DOCTYPE nvidia_smi_log|nvidia-smi\s+topo\s+(-mp|--matrix_pci)\b|NVIDIA-SMI \d+\.\d+|"
            r"^\s*GPU \d+: .*\(UUID: GPU-|^\s*GPU0\s+(X\s+)?(OK|CNS|GNS|TNS|NS)\b",
            f"is what nvidia-smi writes with other options: {_MATRIX}",
        ),
        (
            r"^\s*GPU0\b.*\bMIG\b",
            "lists MIG devices, which have no links of their own: only whole GPUs are modelled",
        ),
        (
            r"\A\s*(>|\S+[:>])[ \t]*GPU0\b",
            "begins each line with a word, as mail, pdsh or mpirun put it: give the text of one machine, without that",
        ),
        (
            r"nvbandwidth Version",
            "is the output of nvbandwidth; measurements are read from p2pBandwidthLatencyTest",
        ),
        (r"\|GPU \d/\d\|", "is the output of xpu-smi, of Intel GPUs, which are not modelled"),
    )
)
_SPELLED = 4096  # characters that are looked at
_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # how such files begin


def refuse_compressed(data: bytes) -> None:
    """Raise ValueError for what gzip, zip, bzip2, xz and zstd write."""
    if data.startswith(_COMPRESSED):
        raise ValueError("is compressed: unpack it first")


def refuse_foreign(text: str) -> None:
    """Raise ValueError for the output of other tools."""
    start = text[:_SPELLED]
    for pattern, reason in _KNOWN:
        if pattern.search(start):
            raise ValueError(reason)
