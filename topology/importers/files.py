"""Imports a topology from a file of another tool; content, not name, decides the format.

Formats: what ``nvidia-smi topo -m`` prints, and topology files of NCCL and RCCL; measured rates of
p2pBandwidthLatencyTest can refine either.
Called by `dgcl/cli/topo_import` (through `__init__`). Free to change while content decides, a GPU model that the file
contradicts is refused, and errors name the file (`tests/topology/importers/test_files.py`); real files:
`tests/topology/importers/test_shared_files.py`.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dgcl.topology.draft import Imported
from dgcl.topology.gpu_models import GpuModel, gpu_model
from dgcl.topology.importers.foreign import refuse_compressed, refuse_foreign
from dgcl.topology.importers.nccl_xml import parse_nccl_xml
from dgcl.topology.importers.p2p_refine import refine_with_p2p
from dgcl.topology.importers.p2p_tables import parse_p2p_rates
from dgcl.topology.importers.several import join_imported, with_card_speed
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from dgcl.topology.importers.topo_matrix_model import topo_matrix_topology
from dgcl.topology.latencies import with_latencies
from dgcl.topology.machine_topology import machine_topology
from dgcl.topology.model import with_model
from dgcl.topology.read_file import read_file

_START = 8192  # bytes, in whatever encoding, that tell whose it is
_KIND, _LARGEST = "a machine's description", 16 << 20  # bytes; a description of a machine takes kilobytes


def import_topology(
    path: str | os.PathLike[str],
    *,
    p2p: str | os.PathLike[str] | None = None,
    gpu: str | None = None,
    nic: float | None = None,
    name: str | None = None,
) -> Imported:
    """The topology that a file describes, with notes on what the file does not say.

    Args:
        path: What ``nvidia-smi topo -m`` printed, or a topology file of NCCL or RCCL.
        p2p: What ``p2pBandwidthLatencyTest`` printed on the same GPUs: their bandwidths as measured.
        gpu: The model of the GPUs, such as ``"A100"``: it decides how many links they have, and how fast those of a
            matrix are. A file that contradicts it is refused.
        nic: GB/s each way of network cards whose speed the file does not give; None: they have no wire, and
            join no machines.
        name: What to call the topology; default: the file's name.

    Raises:
        ValueError: Not such a file, damaged, or contradicting itself; names the file, the line, the reason.
        OSError: It cannot be read.
    """
    path = os.fspath(path)
    model = None if gpu is None else gpu_model(gpu)
    data = read_file(path, _LARGEST, "", _KIND)
    try:
        imported = _import(data, name or _name_of(path), model)
        if nic is not None:
            imported = with_card_speed(imported, nic)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    topology = imported.topology
    if model is not None:
        topology = with_model(topology, model.name)
    imported = replace(imported, topology=with_latencies(topology))
    if p2p is None:
        return imported
    p2p = os.fspath(p2p)
    measured = read_file(p2p, _LARGEST, "", _KIND)
    try:
        return refine_with_p2p(imported, parse_p2p_rates(_text(measured)))
    except ValueError as error:
        raise ValueError(f"{p2p}: {error}") from None


def import_machines(
    paths: Sequence[str | os.PathLike[str]],
    *,
    gpu: str | None = None,
    nic: float | None = None,
    name: str | None = None,
) -> Imported:
    """Several machines, a file for each, joined by their networks; arguments as of :func:`import_topology`.

    Ranks go through the machines in the order of their files. ``nic`` holds for the cards of those machines
    whose files do not give it.

    Raises:
        ValueError: As :func:`import_topology`, or nothing joins the machines.
        OSError: A file cannot be read.
    """
    machines = [import_topology(path, gpu=gpu) for path in paths]
    if nic is not None:
        if not any(machine.cards for machine in machines):
            raise ValueError("nic must not be given: no file names a network card without a speed")
        machines = [with_card_speed(machine, nic) if machine.cards else machine for machine in machines]
    names = list(dict.fromkeys(machine.topology.name for machine in machines))
    joined = join_imported(
        machines, name or (f"{names[0]}x{len(machines)}" if len(names) == 1 else "+".join(names))
    )
    return replace(joined, topology=with_latencies(joined.topology))


def _import(data: bytes, name: str, model: GpuModel | None) -> Imported:
    if not data.strip(b"\xef\xbb\xbf \t\r\n"):
        raise ValueError("is empty")
    refuse_compressed(data)
    start = data[:_START].lstrip(b"\xef\xbb\xbf\xff\xfe").replace(b"\0", b"").decode("latin-1")
    refuse_foreign(start)
    if start.lstrip().startswith("<"):
        machine = parse_nccl_xml(data)
        for pci in (pci for cpu in machine.cpus for pci in cpu.walk()):
            sm = pci.gpu.sm if pci.gpu else None
            if model and sm and sm != model.sm:
                raise ValueError(
                    f"GPU {pci.address} has sm {sm}, but a {model.name} has {model.sm or 'none'}: is gpu right?"
                )
        return machine_topology(machine, name)
    text = _text(data)
    if text.lstrip().startswith("{"):
        raise ValueError("is JSON: a topology file needs no import, and nothing else of JSON can be imported")
    if "P2P=" in text or "P2P Connectivity" in text:
        raise ValueError(
            "is the output of p2pBandwidthLatencyTest, which refines a topology: import the machine's matrix "
            "or XML file, with this as p2p"
        )
    if model and not model.sm:
        raise ValueError(f"is a matrix of nvidia-smi, which knows no {model.name}: is gpu right?")
    return topo_matrix_topology(parse_topo_matrix(text), name, model)


def _text(data: bytes) -> str:
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # what PowerShell's > writes
    try:
        return data.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        kind = "UTF-16" if utf16 else "UTF-8"
        raise ValueError(f"line {line}: is not {kind} text (byte {error.start})") from None


def _name_of(path: str) -> str:
    name = "".join(letter for letter in Path(path).stem if letter.isprintable()).strip()
    return name or "machine"
