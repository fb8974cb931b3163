"""Every real file of the shared collection: read as its parsed twin says, or refused for the right reason."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from dgcl.topology import Topology
from dgcl.topology.importers import import_topology
from dgcl.topology.importers.p2p_tables import parse_p2p_rates
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from tests.support import importer_oracle as oracle
from tests.support.importer_cases import SHARED, needs_data

pytestmark = needs_data


def files(folder: str) -> list[object]:
    return [pytest.param(path, id=path.stem) for path in sorted(SHARED.glob(f"{folder}/*"))]


@pytest.mark.parametrize("path", files("topo_m"))
def test_a_matrix_is_what_its_parsed_twin_says(path: Path):
    expected = json.loads((SHARED / "machines.json").read_text())[path.stem]
    matrix = parse_topo_matrix(path.read_text())
    assert len(matrix.gpus) == expected["gpus"]
    gpus = len(matrix.gpus)
    assert [list(row[:gpus]) for row in matrix.words[:gpus]] == expected["gpu_links"]
    assert list(matrix.nics) == expected["nics"]
    assert [list(row[gpus:]) for row in matrix.words[:gpus] if row[gpus:]] == expected["gpu_nic"]
    assert all(cpus in cells for cpus, cells in zip(matrix.cpus, expected["affinity"], strict=True) if cpus)


@pytest.mark.parametrize("path", files("topo_m"))
def test_the_topology_of_a_matrix_has_its_links(path: Path):
    topology = import_topology(path).topology
    text = path.read_text()
    assert oracle.links_of(topology, "NV") == oracle.matrix_links(text)
    assert {device.name for device in topology.devices} == oracle.matrix_gpus(text)
    assert len(topology.links) == topology.num_devices * (topology.num_devices - 1)


@pytest.mark.parametrize("path", files("topo_m"))
def test_words_say_what_is_passed(path: Path):
    """One switch alone, or the bus between processors."""
    matrix = parse_topo_matrix(path.read_text())
    topology = import_topology(path).topology
    rank = {device.name: index for index, device in enumerate(topology.devices)}
    for link in topology.links:
        word = matrix.words[rank[link.src]][rank[link.dst]]
        if not word.startswith("NV"):
            crosses = any("smp" in step or re.fullmatch(r"cpu\d+-cpu\d+", step) for step in link.route)
            assert crosses == (word in ("SYS", "SOC"))
            assert word != "PIX" or len(link.route) == 2


XML_FILES = [*files("nccl_xml"), *files("constructed")]
WITHOUT_GPUS = {"aws_g5_48xl": 9, "aws_p5_8xH100": 32}  # and how many devices without a class


@pytest.mark.parametrize("path", XML_FILES)
def test_an_xml_file_has_its_links_or_is_refused(path: Path):
    if path.stem in WITHOUT_GPUS:
        count = WITHOUT_GPUS[path.stem]
        with pytest.raises(ValueError, match=f"no GPU: {count} PCI devices have no class"):
            import_topology(path)
        return
    data = path.read_bytes()
    imported = import_topology(path)
    root = ElementTree.fromstring(data)
    gpus = {
        int(gpu.get("dev", "")): pci.get("busid", "")
        for pci in root.iter("pci")
        for gpu in pci.findall("gpu")
    }
    if not gpus:
        listed = [pci.get("busid", "") for pci in root.iter("pci") if pci.get("class", "").startswith("0x03")]
        gpus = dict(enumerate(sorted(listed)))
    address = {f"gpu{dev}": busid for dev, busid in gpus.items()}
    assert {device.name for device in imported.topology.devices} == set(address)
    switched = oracle.xml_switch_links(data)
    for stem, tag in (("NV", "nvlink"), ("XGMI", "xgmi")):
        found = {
            frozenset(address[name] for name in pair): n
            for pair, n in oracle.links_of(imported.topology, stem).items()
        }
        expected = oracle.xml_links(data, tag)
        if stem == "NV" and switched:
            busids = sorted(switched)
            expected |= {
                frozenset((a, b)): min(switched[a], switched[b]) for a in busids for b in busids if a < b
            }
        assert found == expected
    missing = not root.findall(".//gpu") or path.stem.startswith("azure_nc") or len(root.findall("cpu")) > 2
    assert bool(imported.notes) == missing


def test_nics_and_their_speeds():
    path = SHARED / "nccl_xml" / "oci_8xH100_dump.xml"
    topology = import_topology(path).topology
    root = ElementTree.fromstring(path.read_bytes())
    speeds = {net.get("name"): int(net.get("speed", "")) / 8000 for net in root.iter("net")}
    found = {c.b.removesuffix(".port"): c.bandwidth for c in topology.connections if c.kind == "net"}
    assert found == speeds


MEASURED = [
    ("asus_esc8000a_4xRTX6000Ada", "asus_esc8000a_4xRTX6000Ada", 26.32),
    ("puget_wrx90_2xRTX6000Ada", "puget_wrx90_2xRTX6000Ada", 26.32),
    ("node_8xA100_nvswitch", "node_8xA100_nvswitch", 274.4),
    ("node_8xH100_nvswitch", "node_8xH100_nvswitch", 376.1),
    ("gb200_4gpu_gpu_block", "nvl4_4xGB200", 746.8),
]


@pytest.mark.parametrize("matrix, table, rate", MEASURED, ids=[m for m, _, _ in MEASURED])
def test_measured_rates_refine_a_matrix(matrix: str, table: str, rate: float):
    table_path = SHARED / "p2p" / f"{table}.txt"
    topology = import_topology(SHARED / "topo_m" / f"{matrix}.txt", p2p=table_path).topology
    measured = parse_p2p_rates(table_path.read_text())
    assert slowest(topology) == pytest.approx(rate, rel=0.005)
    arrays = topology.arrays()
    model = np.minimum.reduceat(arrays.bandwidth[arrays.link_directions], arrays.link_ptr[:-1])
    np.testing.assert_allclose(model, measured[arrays.link_src, arrays.link_dst], rtol=0.05)


def slowest(topology: Topology) -> float:
    arrays = topology.arrays()
    return float(arrays.bandwidth[np.unique(arrays.link_directions)].min())
