"""From the words of a matrix to connections: trees, NVLinks, NVSwitches, sockets."""

import pytest

from dgcl.topology import Topology
from dgcl.topology.draft import Imported
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from dgcl.topology.importers.topo_matrix_model import topo_matrix_topology
from dgcl.topology.rates import GPU_MODELS
from tests.support.importer_cases import MATRIX
from tests.support.samples import named


def imported(text: str, gpu: str | None = None) -> Imported:
    return topo_matrix_topology(parse_topo_matrix(text), "t", GPU_MODELS[gpu] if gpu else None)


def matrix(words: list[list[str]], affinity: list[str] | None = None) -> str:
    """Text for GPUs with these words."""
    names = [f"GPU{i}" for i in range(len(words))]
    lines = ["\t" + "\t".join([*names, *(["NUMA Affinity"] if affinity else [])])]
    for i, name in enumerate(names):
        lines.append("\t".join([name, *words[i], *([affinity[i]] if affinity else [])]))
    return "\n".join(lines)


def pairs(num_gpus: int, word: str, **other: str) -> list[list[str]]:
    """All pairs alike, but for some: ``_01="NV2"``."""
    words = [["X" if i == j else word for j in range(num_gpus)] for i in range(num_gpus)]
    for key, value in other.items():
        i, j = int(key[1]), int(key[2])
        words[i][j] = words[j][i] = value
    return words


def wires(topology: Topology) -> set[tuple[str, str, str]]:
    return {(c.a, c.b, c.kind) for c in topology.connections}


def test_the_hand_made_machine():
    found = imported(MATRIX, "V100")
    assert wires(found.topology) == {
        ("pcie0", "cpu0", "PCIe"),
        ("gpu0", "pcie0", "PCIe"),
        ("gpu1", "pcie0", "PCIe"),
        ("mlx5_0", "pcie0", "PCIe"),
        ("gpu2", "cpu1", "PCIe"),
        ("cpu0", "cpu1", "SYS"),
        ("gpu0", "gpu1", "NV2"),
    }
    assert [device.socket for device in found.topology.devices] == [0, 0, 1]
    speed = {c.name: c.bandwidth for c in found.topology.connections}
    assert (speed["gpu0-gpu1"], speed["gpu0-pcie0"], speed["cpu0-cpu1"]) == (pytest.approx(48.4), 12.0, 10.0)
    assert found.notes == (
        "the matrix tells no speeds: 24.2 GB/s for an NVLink, 12 GB/s for PCIe, 10 GB/s between NUMA nodes "
        "were assumed",
    )


def test_switches_nest():
    words = pairs(5, "NODE", _01="PIX", _23="PIX", _02="PXB", _03="PXB", _12="PXB", _13="PXB")
    assert wires(imported(matrix(words)).topology) == {
        ("pcie0", "cpu0", "PCIe"),
        ("pcie1", "pcie0", "PCIe"),
        ("gpu0", "pcie1", "PCIe"),
        ("gpu1", "pcie1", "PCIe"),
        ("pcie2", "pcie0", "PCIe"),
        ("gpu2", "pcie2", "PCIe"),
        ("gpu3", "pcie2", "PCIe"),
        ("gpu4", "cpu0", "PCIe"),
    }


@named(
    "num_gpus, word, gpu, switch",
    {
        "a bridge": (2, "NV3", None, False),
        "four H100 wired directly, 18 links each": (4, "NV6", None, False),
        "the same, named": (4, "NV6", "H100", False),
        "four of a DGX-2": (4, "NV6", "V100", True),
        "three of a DGX-2": (3, "NV6", "V100", True),
        "three A100 with twelve links each": (3, "NV6", "A100", False),
        "three of eight A800": (3, "NV8", "A800", True),
        "three of eight H800": (3, "NV8", "H800", True),
        "three of an NVSwitch machine": (3, "NV12", None, True),
        "GB200 node": (4, "NV18", None, True),
        "GB300 node": (4, "NV18", "GB300", True),
        "eight B300": (8, "NV18", "B300", True),
        "eight H20": (8, "NV18", "H20", True),
        "DGX-2": (16, "NV6", None, True),
    },
)
def test_wires_or_switch(num_gpus: int, word: str, gpu: str | None, switch: bool):
    topology = imported(matrix(pairs(num_gpus, word)), gpu).topology
    ends = {c.b for c in topology.connections}
    assert ("nvswitch" in ends) == switch
    assert len(topology.connections) == (num_gpus if switch else num_gpus * (num_gpus - 1) // 2)
    assert {c.kind for c in topology.connections} == {word}


def test_a_gpu_with_fewer_links_to_the_switch():
    words = pairs(4, "NV18", _03="NV16", _13="NV16", _23="NV16")
    topology = imported(matrix(words)).topology
    assert [c.kind for c in topology.connections] == ["NV18", "NV18", "NV18", "NV16"]


def test_islands_have_switches_of_their_own():
    words = pairs(6, "SYS", _01="NV18", _02="NV18", _12="NV18", _34="NV18", _35="NV18", _45="NV18")
    topology = imported(matrix(words)).topology
    assert {c.b for c in topology.connections if c.kind == "NV18"} == {"nvswitch0", "nvswitch1"}
    arrays = topology.arrays()
    assert arrays.num_links == 30


def test_counts_of_no_wiring_are_refused():
    with pytest.raises(
        ValueError, match=r"line \d: by its row GPU\d has \d+ NVLinks.*GPU0 to GPU3 would be NV12 \(got NV2\)"
    ):
        imported(matrix(pairs(4, "NV12", _03="NV2")))


@pytest.mark.parametrize(
    "word, gpu, has",
    [
        ("NV12", "V100", "6"),
        ("NV12", "T4", "no"),
        ("NV1", "L40S", "no"),
        ("NV12", "A800", "8"),
        ("NV6", "A40", "4"),
    ],
)
def test_more_links_than_the_model_has_are_refused(word: str, gpu: str, has: str):
    message = f"line 2: GPU0 to GPU1 is {word}, but a {gpu} has {has} NVLinks: is gpu right"
    with pytest.raises(ValueError, match=message):
        imported(matrix(pairs(3, word)), gpu)


def test_the_wiring_of_a_few_gpus_depends_on_their_model():
    assert any("name their model" in note for note in imported(matrix(pairs(4, "NV6"))).notes)
    assert not any("name their model" in note for note in imported(matrix(pairs(4, "NV6")), "H100").notes)


def test_distances_that_do_not_nest_are_refused():
    with pytest.raises(
        ValueError, match=r"line 2: GPU0 and GPU2 are PHB apart, but a chain .* at most PIX apart"
    ):
        imported(matrix(pairs(3, "PIX", _02="PHB")))


def test_sockets_by_affinity_where_nvlinks_hide_them():
    found = imported(matrix(pairs(4, "NV18"), ["0", "0", "8", "8"]))
    assert [device.socket for device in found.topology.devices] == [0, 0, 8, 8]


def test_sockets_of_some_gpus_are_not_told():
    found = imported(matrix(pairs(4, "NV18"), ["0", "", "-1", "0"]))
    assert [device.socket for device in found.topology.devices] == [0, 1, 1, 0]
    assert "NUMA nodes of gpu1, gpu2 are not told: they were put on socket 1" in found.notes


def test_unknown_sockets_are_told():
    found = imported(matrix(pairs(4, "NV18")))
    assert {device.socket for device in found.topology.devices} == {0}
    assert "NUMA nodes of gpu0, gpu1, gpu2, gpu3 are not told: they were put on socket 0" in found.notes
    assert "the matrix tells nothing of PCIe: it is left out" in found.notes
    assert not any("PCIe" in note for note in imported(matrix([["X"]])).notes)


def test_more_than_two_nodes_meet_in_the_middle():
    topology = imported(matrix(pairs(3, "SYS"), ["0", "1", "3"])).topology
    assert {("cpu0", "smp", "SYS"), ("cpu1", "smp", "SYS"), ("cpu3", "smp", "SYS")} <= wires(topology)


@pytest.mark.parametrize("word", ["PHB", "NODE"])
def test_host_bridges_are_the_processor(word: str):
    ends = {b for _, b, _ in wires(imported(matrix(pairs(4, word))).topology)}
    assert ends == {"cpu0"}


def test_hidden_switches_are_told():
    text = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tNV4\tNODE\nGPU1\tNV4\tX\tNODE\nNIC0\tNODE\tNODE\tX\n"
    found = imported(text)
    assert any("whether gpu0, gpu1 share PCIe switches is hidden" in note for note in found.notes)
    assert {("gpu0", "cpu0", "PCIe"), ("gpu1", "cpu0", "PCIe")} <= wires(found.topology)


def test_a_nic_that_is_far_from_every_gpu():
    text = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tSYS\n"
    found = imported(text)
    assert any("NIC0: SYS from every GPU, and without a row: left out" in note for note in found.notes)
    whole = imported(text + "NIC0\tSYS\tSYS\tX\n")
    assert ("NIC0", "cpu1", "PCIe") in wires(whole.topology)


def test_names_of_the_legend():
    text = "\tGPU0\tNIC0\nGPU0\tX\tPIX\nNIC0\tPIX\tX\n\nNIC Legend:\n\n  NIC0: mlx5_3\n"
    assert ("mlx5_3", "pcie0", "PCIe") in wires(imported(text).topology)
    with pytest.raises(ValueError, match="line 3: 2 devices have the name 'gpu0'"):
        imported(text.replace("mlx5_3", "gpu0"))
