"""The table of presets in the manual has all of them, with the figures that they have."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dgcl.topology import Topology, preset
from dgcl.topology.presets import ALIASES, NODES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")
ROWS = {
    match[1]: match[0]
    for match in re.finditer(r"^\| `([\w:]+)` \|.*\|$", PAGE.split("## Presets")[1], re.MULTILINE)
}


def test_every_preset_has_a_row():
    assert list(ROWS) == [*NODES, "host:N", "uniform:N"]


@pytest.mark.parametrize("name", NODES)
def test_figures_are_those_of_the_preset(name: str):
    _, _, devices, inside, outside, _ = (cell.strip() for cell in ROWS[name].split("|"))
    node = preset(name)
    assert int(devices.split()[0].rstrip(",")) == node.num_devices
    told = {
        (kind, float(rate))
        for kind, rate in re.findall(r"([A-Za-z][\w-]*) (\d+(?:\.\d+)?)", re.sub(r"\(.*?\)", "", inside))
    }
    assert {(c.kind, c.bandwidth) for c in node.connections} == told
    ours = preset(f"{name}x2")
    network = {(c.kind, c.bandwidth) for c in ours.connections if c.b == c.kind.lower()}
    (kind, rate), *rest = network
    assert not rest
    assert outside.startswith(f"{kind} {rate:g}")


def test_other_names_are_told():
    for other, name in ALIASES.items():
        assert f"`{other}`" in PAGE
        assert f"| `{name}` |" in PAGE


def test_the_fields_of_a_file_are_those_of_the_schema():
    """Each key that a file may have, once, needed or with the default that leaving it out has."""
    section = PAGE.split("## Fields of a topology file")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", section, re.MULTILINE)
    told = {key: need for keys, need in rows for key in re.findall(r"`([^`]+)`", keys)}
    whole = preset("dgx1").to_json() | {"about": {}}
    keys = {*whole} - {"devices", "connections", "links"}
    for name in ("devices", "connections", "links"):
        keys |= {f"{name}[]", *(f"{name}[].{key}" for key in whole[name][0])}
    assert set(told) == keys
    example = json.loads(section.split("```json")[1].split("```")[0])
    topology = Topology.from_json(example)
    assert [len(link.route) for link in topology.links] == [1, 2]
    assert topology.arrays().link_latency.tolist() == [0.0, 2e-6]
    for key, need in told.items():
        *above, leaf = key.replace("[]", ".0").split(".")
        if not leaf.isdigit():
            assert_needed_as_told(example, above, leaf, need)


def assert_needed_as_told(example: dict[str, Any], above: list[str], leaf: str, need: str) -> None:
    changed: Any = copy.deepcopy(example)
    item = changed
    for step in above:
        item = item[int(step)] if step.isdigit() else item[step]
    item.pop(leaf, None)
    if need == "needed":
        with pytest.raises(ValueError, match=f"has no '{leaf}'"):
            Topology.from_json(changed)
        return
    topology = Topology.from_json(changed)
    if need.startswith("default"):
        value = topology.to_json()
        for step in above:
            value = value[int(step)] if step.isdigit() else value[step]
        assert value[leaf] == json.loads(need.removeprefix("default ").strip("`"))
