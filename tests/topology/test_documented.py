"""The table of presets in the manual has all of them, with the figures that they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgcl.topology import preset
from dgcl.topology.presets import ALIASES, NODES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `([\w:]+)` \|.*\|$", PAGE, re.MULTILINE)}


def test_every_preset_has_a_row() -> None:
    assert list(ROWS) == [*NODES, "host:N", "uniform:N"]


@pytest.mark.parametrize("name", NODES)
def test_figures_are_those_of_the_preset(name: str) -> None:
    _, _, devices, inside, outside, sources, _ = (cell.strip() for cell in ROWS[name].split("|"))
    node = preset(name)
    assert int(devices.split()[0].rstrip(",")) == node.num_devices
    assert sources
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


def test_other_names_are_told() -> None:
    for other, name in ALIASES.items():
        assert f"`{other}`" in PAGE
        assert f"| `{name}` |" in PAGE
