"""`dgcl topo show`: a file comes back as the topology it is, with its links written out."""

import json
from pathlib import Path

import pytest

from tests.dgcl.cli.support import Run


def test_json_is_a_topology_file(run: Run, folder: Path):
    shown = run("topo", "show", "line.json", "--json").json
    assert shown["schema"] == "dgcl-topology/1"
    routes = {(link["src"], link["dst"]): link["route"] for link in shown["links"]}
    # Links run through switches only, never through another device: none between d0 and d2.
    assert routes == {
        ("d0", "d1"): ["left"],
        ("d1", "d0"): ["left"],
        ("d1", "d2"): ["right"],
        ("d2", "d1"): ["right"],
    }
    (folder / "again.json").write_text(json.dumps(shown))
    assert run("topo", "show", "again.json", "--json").json == shown


@pytest.mark.parametrize(
    "name, devices",
    [("dgx1", 8), ("pcie8", 8), ("dgx1x2", 16), ("dgx_a100", 8), ("hgx_h100", 8), ("summit", 6)],
)
def test_presets(run: Run, name: str, devices: int):
    assert len(run("topo", "show", name, "--json").json["devices"]) == devices


@pytest.mark.parametrize("name", ["uniform3", "uniform:3"])
def test_presets_with_a_size(run: Run, name: str):
    assert len(run("topo", "show", name, "--json").json["links"]) == 6


def test_text_names_every_device_and_connection(run: Run, folder: Path):
    outcome = run("topo", "show", "line.json")
    assert outcome.status == 0
    assert outcome.err == ""
    assert {"line", "d0", "d1", "d2", "left", "right"} <= set(outcome.out.replace(":", " ").split())
