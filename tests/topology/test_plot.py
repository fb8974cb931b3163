"""Pictures: what is on them can be read in the SVG; how they look, only people can judge."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from dgcl.topology import Connection, Device, Topology, preset
from dgcl.topology.combine import Nic, cluster
from dgcl.topology.plot import family_of, plot_topology

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"

PAIR = Topology(
    "pair",
    (Device("gpu0"), Device("gpu1")),
    (
        Connection("w", "NV2", "gpu0", "gpu1", 48.0),
        Connection("n", "PCIe", "nic", "gpu0", 12.0),
        Connection("p", "net", "nic", "nic.port", 12.5),
    ),
)


def texts(path: Path) -> set[str]:
    """Texts of an SVG: they are text, that can be searched and copied."""
    return {"".join(each.itertext()).strip() for each in ElementTree.parse(path).iter(f"{SVG}text")}


@pytest.mark.parametrize("topology", [PAIR, preset("dgx1"), preset("summit")], ids=lambda t: t.name)
def test_every_device_and_switch_is_named(topology: Topology, tmp_path):
    path = tmp_path / "t.svg"
    plot_topology(topology, path)
    ElementTree.parse(path)
    plain = {name.split(".")[-1] for name in (*topology.switches, *(d.name for d in topology.devices))}
    assert (plain - {"port"}) | ({"net"} if "port" in plain else set()) <= texts(path)


def test_the_legend_tells_kinds_and_bandwidths(tmp_path):
    plot_topology(preset("dgx1"), tmp_path / "t.svg")
    assert {"NV2  48.35", "NV1  24.22", "PCIe  11.13", "QPI  9.56"} <= texts(tmp_path / "t.svg")


@pytest.mark.parametrize(
    "suffix, start", [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_formats(suffix: str, start: bytes, tmp_path):
    path = tmp_path / f"t{suffix}"
    plot_topology(PAIR, path)
    assert path.read_bytes().startswith(start)


def test_the_same_topology_gives_the_same_picture(tmp_path):
    for suffix in (".png", ".svg"):
        for name in ("a", "b"):
            plot_topology(preset("dgx1"), tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_a_load_colours_connections(tmp_path):
    busy = np.zeros(PAIR.arrays().num_directions)
    plot_topology(PAIR, tmp_path / "idle.svg", seconds=busy)
    busy[1] = 2e-3
    plot_topology(PAIR, tmp_path / "busy.svg", seconds=busy)
    assert "ms in use, in the busier direction" in texts(tmp_path / "busy.svg")
    assert "us in use, in the busier direction" in texts(tmp_path / "idle.svg")
    with pytest.raises(
        ValueError, match=r"seconds must have one entry for each of the 6 .* \(got shape \(3,\)\)"
    ):
        plot_topology(PAIR, tmp_path / "t.svg", seconds=[1, 2, 3])


def test_a_folded_wire_shows_the_busiest_of_those_for_which_it_stands(tmp_path):
    topology = preset("gb200_nvl72")
    for name, direction in (("first", 0), ("last", topology.arrays().num_directions - 2)):
        busy = np.zeros(topology.arrays().num_directions)
        busy[direction] = 1.0
        plot_topology(topology, tmp_path / f"{name}.svg", seconds=busy)
    plot_topology(topology, tmp_path / "idle.svg", seconds=0 * busy)
    first, last, idle = ((tmp_path / f"{name}.svg").read_text() for name in ("first", "last", "idle"))
    dark = "stroke: #800026"
    assert (first.count(dark), last.count(dark), idle.count(dark)) == (1, 1, 0)
    assert "18 x gpu0" in texts(tmp_path / "last.svg")


def test_rates_of_a_kind_are_drawn_together_in_the_legend(tmp_path):
    wires = tuple(Connection(f"w{i}", "PCIe", f"d{i}", "s", 1.0 + i) for i in range(3))
    plot_topology(Topology("many", tuple(Device(f"d{i}") for i in range(3)), wires), tmp_path / "t.svg")
    assert "PCIe  1 to 3" in texts(tmp_path / "t.svg")


@pytest.mark.parametrize(
    "kind, name",
    [
        ("NV18", "NVLink"),
        ("C2C", "NVLink"),
        ("XGMI4", "xGMI"),
        ("PCIe", "PCIe"),
        ("UPI", "between processors"),
        ("EFA", "network"),
        ("memory", "memory"),
        ("string and tin", "other"),
    ],
)
def test_families(kind: str, name: str):
    assert family_of(kind)[0] == name


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .png, .svg, .pdf \(got '.*t.gif'\)"):
        plot_topology(PAIR, tmp_path / "t.gif")


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'dgcl\[viz\]'"):
        plot_topology(PAIR, tmp_path / "t.png")


def test_ranks_are_numbered_across_machines_where_names_are_not(tmp_path):
    plot_topology(cluster(preset("pcie4_a40"), 2, nics=[Nic("cpu0", 25.0)]), tmp_path / "two.svg")
    assert {"m0.gpu0", "m0.gpu3", "m1.gpu3", "rank 7"} <= texts(tmp_path / "two.svg")
    plot_topology(preset("dgx1"), tmp_path / "one.svg")
    assert not [text for text in texts(tmp_path / "one.svg") if text.startswith("rank")]
