"""`dgcl topo import`: a file in, a topology file out, and what was assumed on the way."""

import json
from pathlib import Path

import pytest

from dgcl.topology import load_topology
from tests.dgcl.cli.support import Run


@pytest.mark.parametrize("name", ["topo.txt", "nccl.xml"])
def test_json_is_a_topology_file_with_notes(run: Run, folder: Path, name: str):
    shown = run("topo", "import", name, "--json").json
    assert [device["name"] for device in shown["devices"]] == ["gpu0", "gpu1", "gpu2"]
    assert shown["about"]["source"] == name
    run("topo", "import", name, "--out", "t.json")
    again = run("topo", "show", "t.json", "--json").json
    assert again == {key: value for key, value in shown.items() if key != "about"}


def test_text_tells_what_was_assumed(run: Run, folder: Path):
    outcome = run("topo", "import", "topo.txt", "--out", "t.json", "--name", "mine")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("mine: 3 devices")
    assert "note: the matrix tells no speeds" in outcome.out
    topology, about = load_topology(folder / "t.json"), json.loads((folder / "t.json").read_text())["about"]
    assert topology.name == "mine"
    assert about["notes"] == [line[6:] for line in outcome.out.splitlines() if line.startswith("note: ")]
    assert run("topo", "import", "topo.txt").out.count("\n") > 20


def test_measurements_and_models(run: Run, folder: Path):
    assert run("topo", "import", "topo.txt", "--p2p", "p2p.txt", "--out", "t.json").status == 0
    assert {c.kind: c.bandwidth for c in load_topology(folder / "t.json").connections}["NV2"] == 48.1
    assert run("topo", "import", "topo.txt", "--gpu", "A100", "--out", "t.json").status == 0
    assert {c.kind: c.bandwidth for c in load_topology(folder / "t.json").connections}["NV2"] == 45.6


def test_several_machines(run: Run, folder: Path):
    outcome = run("topo", "import", "topo.txt", "nccl.xml", "--nic", "10", "--out", "t.json")
    assert (outcome.status, outcome.err) == (0, "")
    topology, about = load_topology(folder / "t.json"), json.loads((folder / "t.json").read_text())["about"]
    assert [(d.name, d.machine) for d in topology.devices][2:4] == [("m0.gpu2", 0), ("m1.gpu0", 1)]
    assert len(topology.links) == 30
    assert about["source"] == "topo.txt, nccl.xml"
    rates = {c.name: c.bandwidth for c in topology.connections}
    # The matrix names a card without a speed, the XML file its 100 Gb/s.
    assert (rates["m0.mlx5_0-net"], rates["m1.mlx5_0-net"]) == (10.0, 12.5)
    assert load_topology(folder / "t.json").name == "topo+nccl"
    run("topo", "import", "nccl.xml", "nccl.xml", "--out", "t.json")
    assert load_topology(folder / "t.json").name == "ncclx2"


def test_a_card_gets_its_speed(run: Run, folder: Path):
    run("topo", "import", "topo.txt", "--nic", "10", "--out", "t.json")
    wires = {c.name: c.bandwidth for c in load_topology(folder / "t.json").connections}
    assert wires["mlx5_0-mlx5_0.port"] == 10.0
