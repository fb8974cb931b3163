"""GPUs by their names, and what is known of an imported machine: the same as of its preset."""

from pathlib import Path

import pytest

from dgcl.advisor.device_rates import preset_rates
from dgcl.topology import preset
from dgcl.topology.gpu_models import GPU_MODELS, find_model, gpu_model, model_of_pci
from dgcl.topology.importers import import_topology
from dgcl.topology.json_io import load_topology, save_topology
from dgcl.topology.latencies import without_latencies
from dgcl.topology.presets import NODES
from tests.support.samples import named

WRITTEN = {
    "NVIDIA H100 80GB HBM3": "H100", "Tesla V100-SXM2-32GB": "V100", "rtx4090": "4090", "2080 ti": "2080 Ti",
    "NVIDIA RTX A6000": "A6000", "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada", "MI210 X": "MI210", "": "",
}  # fmt: skip


def test_names():
    assert {text: find_model(text) for text in WRITTEN} == WRITTEN
    assert {name: gpu_model(name.lower()).name for name in GPU_MODELS} == {name: name for name in GPU_MODELS}
    assert [model_of_pci(*each) for each in (("0x2330", 90), ("", 70), ("", 90), ("", None))] == [
        "H100",
        "V100",
        "",
        "",
    ]


def test_presets_say_what_their_cards_are():
    unknown = [name for name in NODES if preset(name).devices[0].model not in GPU_MODELS]
    assert unknown == ["pcie8"]


def matrix(word: str) -> str:
    names = [f"GPU{gpu}" for gpu in range(8)]
    rows = [[name, *("X" if other == name else word for other in names)] for name in names]
    return "\n".join("\t".join(row) for row in [["", *names], *rows]) + "\n"


@named(
    "gpu, links, machine",
    {"H100": ("h100", "NV18", "hgx_h100"), "A100": ("NVIDIA A100-SXM4-80GB", "NV12", "dgx_a100")},
)
def test_an_imported_machine_is_known_as_its_preset(gpu: str, links: str, machine: str, tmp_path: Path):
    path = tmp_path / "gpuhost01.txt"
    path.write_text(matrix(links))
    ours, theirs = import_topology(path, gpu=gpu).topology, preset(machine)
    save_topology(ours, tmp_path / "t.json")
    assert load_topology(tmp_path / "t.json") == ours
    assert preset_rates(ours) == preset_rates(theirs)
    assert ours.arrays().link_latency.tolist() == pytest.approx(theirs.arrays().link_latency.tolist())
    bare = preset_rates(without_latencies(import_topology(path).topology))
    assert "what its cards are" in bare.unknown
    assert "latencies" in bare.unknown
