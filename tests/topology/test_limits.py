"""Sizes that no machine has: refused at once, with the most that a topology may have."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dgcl.topology import Topology, load_topology, measure_host, preset, resolve_topology
from dgcl.topology.checks import MOST_DEVICES
from dgcl.topology.combine import cluster
from dgcl.topology.copy_rates import CopyRates
from dgcl.topology.hosts import Host, hosts_topology
from dgcl.topology.parts import Device
from tests.support.samples import named

MOST = rf"a topology has at most {MOST_DEVICES}$"


@pytest.mark.parametrize(
    "spec, devices",
    [
        ("uniform:99999999", 99999999),
        ("uniform:1025", 1025),
        ("host:5000", 5000),
        ("host999999999999", 999999999999),
        ("hgx_h100x200", 1600),
        ("dgx1x99999999999", 799999999992),
        ("gb200_nvl72x15", 1080),
    ],
)
def test_presets(spec: str, devices: int):
    with pytest.raises(ValueError, match=rf"would have {devices} devices; {MOST}"):
        resolve_topology(spec)


def test_the_most_is_not_too_many():
    devices = tuple(Device(f"d{n}") for n in range(MOST_DEVICES))
    assert Topology("most", devices, (), ()).num_devices == MOST_DEVICES
    with pytest.raises(ValueError, match=rf"topology 'more' would have {MOST_DEVICES + 1} devices; {MOST}"):
        Topology("more", (*devices, Device("last")), (), ())


def test_sizes_as_arguments():
    with pytest.raises(ValueError, match=MOST):
        preset("uniform", 10**12)
    with pytest.raises(ValueError, match=MOST):
        measure_host(10**12)
    with pytest.raises(ValueError, match=r"num_machines: 1000 times 'dgx1' would have 8000 devices"):
        cluster(preset("dgx1"), 1000)
    with pytest.raises(ValueError, match=r"2 hosts would have 2000 devices"):
        hosts_topology([Host(CopyRates(1.0, 1.0))] * 2, [0, 1] * 1000, [0] * 2000)


def test_files(tmp_path):
    obj: dict[str, Any] = {"schema": "dgcl-topology/1", "name": "large", "connections": []}
    obj["devices"] = [{"name": f"d{n}"} for n in range(20_000)]
    (tmp_path / "large.json").write_text(json.dumps(obj))
    with pytest.raises(ValueError, match=rf"large\.json: it would have 20000 devices; {MOST}"):
        load_topology(tmp_path / "large.json")


@named(
    "text, message",
    {
        "digits": ('{"name": ' + "1" * 5000 + "}", r"f\.json: Exceeds the limit"),
        "xml": ("<system version='1'/>", r"f\.json: is not JSON; .*dgcl topo import$"),
        "matrix": ("\tGPU0\tGPU1\n", r"f\.json: is not JSON; .*dgcl topo import$"),
    },
)
def test_files_of_another_kind(text: str, message: str, tmp_path):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_topology(tmp_path / "f.json")


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    (tmp_path / "t.json").write_bytes(bytes(1 << 21))
    monkeypatch.setattr("dgcl.topology.json_io._LARGEST", 1 << 20)
    with pytest.raises(ValueError, match=r"t\.json: is larger than 1 MB, too large for a topology"):
        load_topology(tmp_path / "t.json")


def pair() -> dict[str, Any]:
    return {
        "schema": "dgcl-topology/1",
        "name": "pair",
        "devices": [{"name": "a"}, {"name": "b"}],
        "connections": [{"name": "wire", "kind": "wire", "a": "a", "b": "b", "bandwidth": 1.0}],
    }


@named(
    "where, value, message",
    {
        "fast": (
            "bandwidth",
            1e300,
            r"connections\[0\]\.bandwidth of .* must be between 1e-12 and 1e\+12 \(got 1e\+300\)",
        ),
        "slow": ("bandwidth", 1e-300, r"connections\[0\]\.bandwidth of .* must be between .* \(got 1e-300\)"),
        "late": (
            "latency",
            1e10,
            r"connections\[0\]\.latency of .* must be between 0 and 1e\+09 \(got 1e\+10\)",
        ),
        "machine": (
            "machine",
            10**30,
            r"devices\[0\]\.machine must be an integer from 0 to 2147483647 \(got 10000",
        ),
        "socket": (
            "socket",
            2**31,
            r"devices\[0\]\.socket must be an integer from 0 to 2147483647 \(got 2147483648\)",
        ),
        "googol": (
            "machine",
            10**400,
            r"devices\[0\]\.machine must be an integer from 0 to 2147483647 \(got 1000",
        ),
    },
)
def test_numbers_that_nothing_can_be_computed_with(where: str, value: float, message: str):
    obj = pair()
    obj["devices" if where in ("machine", "socket") else "connections"][0][where] = value
    with pytest.raises(ValueError, match=message):
        Topology.from_json(obj)


LONG = "x" * 10_000


@named(
    "change",
    {
        "not printable": lambda o: o["devices"].append({"name": LONG + " "}),
        "end": lambda o: o.update(links=[{"src": LONG, "dst": "b", "route": []}]),
        "route": lambda o: o.update(links=[{"src": "a", "dst": "b", "route": [LONG]}]),
        "elsewhere": lambda o: (
            o["devices"].append({"name": LONG}),
            o.update(links=[{"src": LONG, "dst": "a", "route": ["wire"]}]),
        ),
    },
)
def test_over_long_names_are_cut_in_messages(change: Callable[[dict[str, Any]], object]):
    obj = pair()
    change(obj)
    with pytest.raises(ValueError, match="xxx") as caught:
        Topology.from_json(obj)
    assert len(str(caught.value)) < 500
