"""From names, sizes and paths to topologies."""

from pathlib import Path
from typing import Any

import pytest

from dgcl.topology import Topology, preset, preset_names, resolve_topology, save_topology


@pytest.mark.parametrize("name", ["gh200x2", *(name for name in preset_names() if name != "gh200")])
def test_every_name_resolves(name: str):
    topology = resolve_topology(name, num_devices=2)
    assert topology.num_devices == 2
    assert topology.arrays().num_links == 2


@pytest.mark.parametrize(
    "spec, num_devices, name, size",
    [
        ("uniform8", None, "uniform8", 8),
        ("uniform", 8, "uniform8", 8),
        ("uniform:8", 8, "uniform8", 8),
        ("uniform:8", 3, "uniform8[:3]", 3),
        ("host:2", None, "host2", 2),
        ("host", 2, "host2", 2),
        ("dgx1", None, "dgx1", 8),
        ("dgx1", 4, "dgx1[:4]", 4),
        ("dgx1x2", 9, "dgx1x2[:9]", 9),
    ],
)
def test_sizes(spec: str, num_devices: int | None, name: str, size: int):
    topology = resolve_topology(spec, num_devices)
    assert (topology.name, topology.num_devices) == (name, size)


def test_topologies_pass_through():
    topology = preset("dgx1")
    assert resolve_topology(topology) is topology
    assert resolve_topology(topology, 8) is topology
    assert resolve_topology(topology, 3) == topology.restrict(3)


def test_files_by_text_and_by_path(tmp_path, monkeypatch):
    topology = preset("summit")
    monkeypatch.chdir(tmp_path)
    save_topology(topology, "machine")
    assert resolve_topology("machine") == topology
    assert resolve_topology(Path("machine"), 2) == topology.restrict(2)


def test_a_preset_wins_over_a_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_topology(preset("summit"), "dgx1")
    assert resolve_topology("dgx1").name == "dgx1"
    assert resolve_topology("./dgx1").name == "summit"
    assert resolve_topology(Path("dgx1")).name == "summit"


@pytest.mark.parametrize(
    "spec, num_devices, error, message",
    [
        (
            "dgx-1",
            None,
            ValueError,
            r"topology must be a preset \(dgx1, .*\(got 'dgx-1'\); did you mean 'dgx[12]'\?$",
        ),
        (
            "uniform:x",
            None,
            ValueError,
            r"topology must be a preset .* or the path of a JSON file \(got 'uniform:x'\)",
        ),
        ("", None, ValueError, r"topology must be a preset .*\(got ''\)$"),
        ("uniform", None, ValueError, "'uniform' has no size of its own: .* as in 'uniform:4'"),
        ("host", None, ValueError, "'host' has no size of its own: .* as in 'host:4'"),
        ("uniform:0", None, ValueError, "must have at least 1 device"),
        ("dgx1", 9, ValueError, "'dgx1' has 8 devices, too few for 9; use at most 8 ranks or .* 'uniform:9'"),
        ("uniform:4", 5, ValueError, "'uniform4' has 4 devices, too few for 5"),
        ("dgx1", 0, ValueError, "must be an integer from 1 to 8"),
        ("uniform", 0, ValueError, "must have at least 1 device"),
        ("uniform", -2, ValueError, "num_devices must be an integer >= 0"),
        ("dgx1", True, TypeError, "num_devices must be an integer"),
        ("host", [2], TypeError, "num_devices must be an integer"),
        ("missing.json", None, FileNotFoundError, "cannot read topology file 'missing.json': No such file"),
        ("folder/dgx1", None, FileNotFoundError, "cannot read topology file 'folder/dgx1': No such file"),
        (Path("dgx1"), None, FileNotFoundError, "cannot read topology file 'dgx1': No such file"),
        (".", None, IsADirectoryError, "cannot read topology file '.'"),
        (3, None, TypeError, r"topology must be a Topology, a preset name or .* \(got 3\)"),
        (None, 4, TypeError, r"topology must be a Topology, a preset name or .* \(got None\)"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals(
    spec: Any,
    num_devices: Any,
    error: type[Exception],
    message: str,
    tmp_path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        resolve_topology(spec, num_devices)


def test_a_host_is_measured_once():
    assert isinstance(preset("host2"), Topology)
    assert preset("host2") is preset("host:2")


@pytest.mark.parametrize(
    "name, machines, devices",
    [
        ("dgx1x3", 3, 24),
        ("hgx_h100x4", 4, 32),
        ("mi250xx2", 2, 16),
        ("dgx2x1", 1, 16),
    ],
)
def test_several_machines_of_a_name(name: str, machines: int, devices: int):
    topology = resolve_topology(name)
    assert len({device.machine for device in topology.devices}) == machines
    assert topology.num_devices == devices
    assert topology.name == name.removesuffix("x1")
    assert topology.arrays().num_links == devices * (devices - 1)


@pytest.mark.parametrize("name", ["dgx1x0", "dgx1x", "mi250xx", "h200x0", "dgx1 x2", "uniformx2"])
def test_no_such_cluster(name: str):
    with pytest.raises(ValueError, match="topology must be a preset"):
        resolve_topology(name)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("dgx_h100", "hgx_h100"),
        ("h200", "hgx_h200"),
        ("b200x4", "hgx_b200x4"),
        ("frontierx2", "mi250xx2"),
        ("hgx_a100", "dgx_a100"),
    ],
)
def test_other_names(name: str, meant: str):
    assert resolve_topology(name) == preset(meant)
    assert preset(name, 4) == preset(meant, 4)


@pytest.mark.parametrize(
    "name, hint", [("dgx_h10", "dgx_h100"), ("gh2000", "gh200"), ("mi300", "mi300x"), ("b3000", "b300")]
)
def test_hints(name: str, hint: str):
    with pytest.raises(ValueError, match=rf"; did you mean '{hint}'\?"):
        resolve_topology(name)


def test_too_few_devices_name_as_many_machines_as_are_needed():
    with pytest.raises(
        ValueError, match=r"has 8 devices, too few for 17; .* such as 'dgx1x3' or 'uniform:17'"
    ):
        resolve_topology("dgx1", 17)
    with pytest.raises(ValueError, match=r"larger topology such as 'uniform:17'"):
        resolve_topology("dgx1x2", 17)
