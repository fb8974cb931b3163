"""`dgcl topo detect`: the machine as it is found, and a clear line where something cannot be found."""

import json
import re
from pathlib import Path

import pytest

from dgcl.topology import Topology, load_topology
from dgcl.topology import detect as detect_package
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.detect import NvmlUnavailable
from dgcl.topology.draft import Imported
from dgcl.topology.host import host_topology
from tests.dgcl.cli.support import Run

GPUS = Topology.from_json(
    {
        "schema": "dgcl-topology/1",
        "name": "node",
        "devices": [{"name": "gpu0"}, {"name": "gpu1"}],
        "connections": [{"name": "nv", "kind": "NV4", "a": "gpu0", "b": "gpu1", "bandwidth": 48.0}],
    }
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch):
    """No GPU, and copies that take no time to measure."""

    def none(name: str) -> Imported:
        raise NvmlUnavailable("libnvidia-ml.so.1 is not here")

    monkeypatch.setattr(detect_package, "detect_gpus", none)
    monkeypatch.setattr(
        "dgcl.topology.measure_host", lambda ranks: host_topology(ranks, CopyRates(10.0, 12.0))
    )


def test_without_gpus_the_host_is_described(run: Run, folder: Path):
    outcome = run("topo", "detect", "--ranks", "3", "--name", "here", "--out", "t.json")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("here: 3 devices")
    assert "note: libnvidia-ml.so.1 is not here; ranks run on CPUs" in outcome.out
    assert re.search(r"^this host: \d+ sockets?, \d+ processors?, ", outcome.out, re.MULTILINE)
    topology, about = load_topology(folder / "t.json"), json.loads((folder / "t.json").read_text())["about"]
    assert topology.name == "here"
    assert about["source"].startswith("detected: ")
    assert about["notes"][0] == "libnvidia-ml.so.1 is not here; ranks run on CPUs"
    assert "the best that was measured on this machine, now or before" in about["notes"][1]


def test_gpus_are_described_unless_the_cpu_is_asked_for(run: Run, monkeypatch):
    monkeypatch.setattr(detect_package, "detect_gpus", lambda name: Imported(GPUS, ("one remark",)))
    shown = run("topo", "detect", "--json").json
    assert [device["name"] for device in shown["devices"]] == ["gpu0", "gpu1"]
    assert shown["about"]["notes"] == ["one remark"]
    assert run("topo", "detect", "--cpu", "--ranks", "2", "--json").json["devices"][0]["name"] == "rank0"


def test_parts_of_gpus_are_refused(run: Run, monkeypatch):
    def mig(name: str) -> Imported:
        raise ValueError("CUDA_VISIBLE_DEVICES names MIG-1, a part of a GPU")

    monkeypatch.setattr(detect_package, "detect_gpus", mig)
    outcome = run("topo", "detect")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == "dgcl topo detect: CUDA_VISIBLE_DEVICES names MIG-1, a part of a GPU\n"
