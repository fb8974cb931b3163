"""Import a file: what kind it is, is told by what is in it, not by its name."""

from __future__ import annotations

import os
from pathlib import Path

from dgcl.topology.checks import nearest, shown
from dgcl.topology.draft import Imported
from dgcl.topology.importers.nccl_xml import parse_nccl_xml
from dgcl.topology.importers.p2p_refine import refine_with_p2p
from dgcl.topology.importers.p2p_tables import parse_p2p_tables
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from dgcl.topology.importers.topo_matrix_model import topo_matrix_topology
from dgcl.topology.machine_topology import machine_topology
from dgcl.topology.rates import GPU_MODELS

_LARGEST = 16 << 20  # bytes; a description of a machine takes kilobytes


def import_topology(
    path: str | os.PathLike[str],
    *,
    p2p: str | os.PathLike[str] | None = None,
    gpu: str | None = None,
    name: str | None = None,
) -> Imported:
    """The topology that a file describes, and what it does not tell.

    Args:
        path: What ``nvidia-smi topo -m`` printed, or a topology file of NCCL or RCCL.
        p2p: What ``p2pBandwidthLatencyTest`` printed on the same GPUs: their bandwidths as measured.
        gpu: The model of the GPUs of a matrix, such as ``"A100"``: it decides how fast their links are.
        name: What to call the topology; default: the file's name.

    Raises:
        ValueError: Not such a file, damaged, or contradicting itself; names the file, the line, the reason.
        OSError: It cannot be read.
    """
    path = os.fspath(path)
    if gpu is not None and gpu not in GPU_MODELS:
        raise ValueError(
            f"gpu must be one of {', '.join(GPU_MODELS)} (got {shown(gpu)}){nearest(gpu, GPU_MODELS)}"
        )
    data = _read(path)
    try:
        imported = _import(data, name or _name_of(path), gpu)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if p2p is None:
        return imported
    p2p = os.fspath(p2p)
    measured = _read(p2p)
    try:
        return refine_with_p2p(imported, parse_p2p_tables(_text(measured)))
    except ValueError as error:
        raise ValueError(f"{p2p}: {error}") from None


def _import(data: bytes, name: str, gpu: str | None) -> Imported:
    start = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not start:
        raise ValueError("is empty")
    if start == b"<" or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return machine_topology(parse_nccl_xml(data), name)
    text = _text(data)
    if start == b"{":
        raise ValueError("is JSON: a topology file needs no import, and nothing else of JSON can be imported")
    if "P2P=" in text or "P2P Connectivity" in text:
        raise ValueError(
            "is the output of p2pBandwidthLatencyTest, which refines a topology: import the machine's matrix "
            "or XML file, with this as p2p"
        )
    return topo_matrix_topology(parse_topo_matrix(text), name, GPU_MODELS.get(gpu or ""))


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line}: is not UTF-8 text (byte {error.start})") from None


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise type(error)(f"cannot read {path!r}: {error.strerror or error}") from None
    if len(data) > _LARGEST:
        raise ValueError(f"{path}: is larger than {_LARGEST >> 20} MB, too large for a machine's description")
    return data


def _name_of(path: str) -> str:
    name = "".join(letter for letter in Path(path).stem if letter.isprintable()).strip()
    return name or "machine"
