"""Topology files: round trips, and what is said of files that are wrong."""

import copy
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.topology import Connection, Device, Link, Topology, load_topology, preset, save_topology
from dgcl.topology.presets import NODES

# The example of the format, as a reader of the documentation would type it.
EXAMPLE: dict[str, Any] = {
    "schema": "dgcl-topology/1",
    "name": "two-sockets",
    "devices": [
        {"name": "gpu0", "machine": 0, "socket": 0},
        {"name": "gpu1", "machine": 0, "socket": 1},
    ],
    "connections": [
        {
            "name": "gpu0-plx0",
            "kind": "PCIe",
            "a": "gpu0",
            "b": "plx0",
            "bandwidth": 11.13,
            "latency": 0.0,
            "duplex": "full",
        },
        {"name": "gpu0-gpu1", "kind": "NV2", "a": "gpu0", "b": "gpu1", "bandwidth": 48.35},
    ],
    "links": [{"src": "gpu0", "dst": "gpu1", "route": ["gpu0-gpu1"]}],
}


def test_the_example_of_the_format():
    assert Topology.from_json(EXAMPLE) == Topology(
        name="two-sockets",
        devices=(Device("gpu0", 0, 0), Device("gpu1", 0, 1)),
        connections=(
            Connection("gpu0-plx0", "PCIe", "gpu0", "plx0", 11.13),
            Connection("gpu0-gpu1", "NV2", "gpu0", "gpu1", 48.35),
        ),
        links=(Link("gpu0", "gpu1", ("gpu0-gpu1",)),),
    )


def test_optional_keys_have_defaults_and_links_are_derived():
    short = {key: value for key, value in EXAMPLE.items() if key != "links"}
    short["devices"] = [{"name": "gpu0"}, {"name": "gpu1"}]
    topology = Topology.from_json(short)
    assert topology.devices == (Device("gpu0", 0, 0), Device("gpu1", 0, 0))
    assert topology.connections[1].duplex == "full"
    assert [(link.src, link.dst) for link in topology.links] == [("gpu0", "gpu1"), ("gpu1", "gpu0")]
    assert Topology.from_json(short | {"links": []}).links == ()


def test_what_is_written_is_complete():
    written = Topology.from_json(EXAMPLE).to_json()
    assert written["links"] == EXAMPLE["links"]
    assert written["connections"][1] == EXAMPLE["connections"][1] | {"latency": 0.0, "duplex": "full"}
    assert json.loads(json.dumps(written)) == written


@pytest.mark.parametrize("name", [*NODES, "dgx1x2", "aws_p4dx2", "summitx2", "uniform:3"])
def test_presets_round_trip_through_files(name: str, tmp_path):
    topology = preset(name)
    save_topology(topology, tmp_path / "t.json")
    assert load_topology(tmp_path / "t.json") == topology
    assert load_topology(str(tmp_path / "t.json")) == topology


names = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=4).filter(
    lambda text: text.isprintable() and text == text.strip()
)


@given(
    st.lists(names, min_size=2, max_size=4, unique=True),
    st.floats(1e-12, 1e12),
    st.floats(0, 1e9),
    st.sampled_from(["full", "half"]),
)
def test_any_names_and_numbers_round_trip(ends: list[str], bandwidth: float, latency: float, duplex: str):
    connections = tuple(
        Connection(f"{a}-{b}", a, a, b, bandwidth, latency, duplex) for a, b in pairwise(ends)
    )
    topology = Topology(ends[0], (Device(ends[0], 1, 2), Device(ends[-1])), connections)
    assert Topology.from_json(json.loads(json.dumps(topology.to_json()))) == topology


def changed(path: str, value: Any) -> dict[str, Any]:
    """The example with the item at ``path`` (``connections[1].bandwidth``) replaced; ``...`` removes it."""
    obj = copy.deepcopy(EXAMPLE)
    steps = [int(step) if step.isdigit() else step for step in re.findall(r"\w+", path)]
    at: Any = obj
    for step in steps[:-1]:
        at = at[step]
    if value is ...:
        del at[steps[-1]]
    else:
        at[steps[-1]] = value
    return obj


WRONG = [
    ("schema", ..., "the topology has no 'schema'; it needs schema, name, devices, connections"),
    ("schema", "dgcl-topology/2", "schema must be 'dgcl-topology/1' (got 'dgcl-topology/2')"),
    ("name", 7, "name must be a string (got 7)"),
    ("link", [], "the topology has an unknown key 'link'; did you mean 'links'?"),
    ("devices", {}, "devices must be a list (got {})"),
    ("devices[1]", "gpu1", "devices[1] must be an object with the keys name (got 'gpu1')"),
    ("devices[1].name", ..., "devices[1] has no 'name'; it needs name"),
    ("devices[1].name", "gpu0", "devices[1].name 'gpu0' is taken by devices[0]"),
    ("devices[0].machine", "0", "devices[0].machine must be an integer from 0 to 2147483647 (got '0')"),
    ("connections[1].a", ..., "connections[1] has no 'a'; it needs name, kind, a, b, bandwidth"),
    (
        "connections[1].bandwidth",
        "48",
        "connections[1].bandwidth of 'gpu0-gpu1' must be a positive number (got '48')",
    ),
    ("connections[0].width", 16, "connections[0] has an unknown key 'width'; did you mean 'bandwidth'?"),
    ("links", None, "links must be a list (got None)"),
    ("links[0].route", "gpu0-gpu1", "links[0].route must be a list of connection names (got 'gpu0-gpu1')"),
    ("links[0].src", ["gpu0"], "links[0].src must be the name of a device (got ['gpu0'])"),
]


@pytest.mark.parametrize("path, value, message", WRONG, ids=lambda value: str(value)[:26])
def test_wrong_objects(path: str, value: Any, message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Topology.from_json(changed(path, value))


TEXT = json.dumps(EXAMPLE)
WRONG_TEXT = {
    "empty": (b"", "line 1, column 1: is not JSON (Expecting value)"),
    "cut off": (TEXT[:50].encode(), "is not JSON ("),
    "second line": (
        b'{"schema": "dgcl-topology/1",\n "name" "x"}',
        "line 2, column 9: is not JSON (Expecting ':' delimiter)",
    ),
    "not text": (b"\xff\xfe\x00", "is not UTF-8 text (byte 0)"),
    "NaN": (
        TEXT.replace("48.35", "NaN").encode(),
        "connections[1].bandwidth of 'gpu0-gpu1' must be a positive number (got nan)",
    ),
    "Infinity": (
        TEXT.replace("0.0", "Infinity").encode(),
        "connections[0].latency of 'gpu0-plx0' must be a number >= 0 (got inf)",
    ),
    "too large": (
        TEXT.replace("48.35", "1e999").encode(),
        "connections[1].bandwidth of 'gpu0-gpu1' must be a positive number (got inf)",
    ),
    "a number of many digits": (
        TEXT.replace("48.35", "9" * 400).encode(),
        "connections[1].bandwidth of 'gpu0-gpu1' must be a positive",
    ),
    "two documents": ((TEXT + TEXT).encode(), "is not JSON (Extra data)"),
    "deep": (b"[" * 200_000, "is nested too deeply"),
    "key twice": (
        TEXT.replace('"kind": "NV2"', '"kind": "NV1", "kind": "NV2"').encode(),
        "an object has the key 'kind' twice",
    ),
    "top key twice": (b'{"name": "a", ' + TEXT[1:].encode(), "an object has the key 'name' twice"),
    "a list": (b"[]", "the topology must be an object with the keys"),
}


@pytest.mark.parametrize("content, message", WRONG_TEXT.values(), ids=WRONG_TEXT.keys())
def test_wrong_files_are_one_line_that_names_the_file(content: bytes, message: str, tmp_path):
    path = tmp_path / "machine.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_topology(path)
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "none.json"
    with pytest.raises(
        FileNotFoundError, match=re.escape(f"cannot read topology file '{missing}': No such file")
    ):
        load_topology(missing)
    with pytest.raises(IsADirectoryError, match="cannot read topology file"):
        load_topology(tmp_path)


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: .*none/t.json"):
        save_topology(preset("dgx1"), tmp_path / "none" / "t.json")
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: '/dev/full'$"):
        save_topology(preset("dgx1"), "/dev/full")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    "schema",
    "name",
    "devices",
    "devices[0]",
    "devices[1].name",
    "devices[0].machine",
    "connections",
    "connections[0]",
    "connections[1].name",
    "connections[1].a",
    "connections[1].bandwidth",
    "connections[0].latency",
    "connections[0].duplex",
    "links",
    "links[0]",
    "links[0].src",
    "links[0].dst",
    "links[0].route",
]


@given(st.sampled_from(PATHS), json_values | st.just(...))
def test_any_value_anywhere_is_taken_or_refused_in_one_line(path: str, value: Any):
    message = ""
    try:
        topology = Topology.from_json(changed(path, value))
    except ValueError as error:
        message = str(error)
    else:
        assert Topology.from_json(topology.to_json()) == topology
    assert "\n" not in message
    assert len(message) < 300


def test_what_a_file_tells_about_itself(tmp_path):
    path, about = tmp_path / "t.json", {"notes": ["measured on a Sunday"], "residual": 0.1}
    save_topology(preset("dgx1"), path, about=about)
    assert load_topology(path) == preset("dgx1")
    assert json.loads(path.read_text())["about"] == about
    save_topology(preset("dgx1"), path)
    assert "about" not in json.loads(path.read_text())


def test_about_must_be_an_object():
    with pytest.raises(ValueError, match=r"^about must be an object \(got 'me'\)"):
        Topology.from_json({**EXAMPLE, "about": "me"})
