"""Damaged inputs: never anything but a ValueError, and never a topology that contradicts what was read.

Each input is damaged in hundreds of ways: lines cut, doubled and swapped, columns swapped, bytes changed,
text cut off. What an importer still accepts is held to a naive reading of the very same text.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dgcl.topology.draft import Imported
from dgcl.topology.importers import import_topology
from dgcl.topology.importers.p2p_tables import parse_p2p_rates
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from tests.support import importer_oracle as oracle
from tests.support.importer_cases import MATRIX, SHARED, TABLES, XML
from tests.support.samples import slow

# Damaged copies for each way of damaging.
DEPTHS = [pytest.param(4, id="quick"), slow(70, id="deep")]


def change_line(text: str, rng: random.Random) -> str:
    """Cut, doubled, in the place of another, or with its words in another order."""
    lines = text.splitlines(keepends=True)
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    words = lines[at].split()
    shuffled = "\t".join(rng.sample(words, len(words))) + "\n"
    lines[at : at + 1] = rng.choice([[], 2 * [lines[at]], [lines[other]], [shuffled]])
    return "".join(lines)


def swap_columns(text: str, rng: random.Random) -> str:
    rows = [line.split("\t") for line in text.splitlines()]
    a, b = rng.randrange(1, 6), rng.randrange(1, 6)
    for row in rows:
        if len(row) > max(a, b):
            row[a], row[b] = row[b], row[a]
    return "\n".join("\t".join(row) for row in rows)


def cut_off(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text))]


def change_byte(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(["", *'0123456789ABNSVXYZ<>"/=.,- \t\n\x00\u00e9']) + text[at + 1 :]


def change_digit(text: str, rng: random.Random) -> str:
    at = rng.choice([index for index, letter in enumerate(text) if letter.isdigit()])
    return text[:at] + rng.choice("0123456789") + text[at + 1 :]


WAYS: list[Callable[[str, random.Random], str]] = [
    change_line, swap_columns, cut_off, change_byte, change_digit,
]  # fmt: skip


def shared(folder: str) -> list[object]:
    return [pytest.param(path.read_text(), id=path.stem) for path in sorted(SHARED.glob(f"{folder}/*"))]


def damaged(text: str, each: int) -> list[str]:
    rng = random.Random(0)
    return [way(text, rng) for way in WAYS for _ in range(each)]


def imported(text: str, path: Path) -> Imported | None:
    path.write_bytes(text.encode())
    try:
        return import_topology(path)
    except ValueError as error:
        complaint = str(error)
    assert complaint.startswith(str(path))
    assert "\n" not in complaint
    return None


@pytest.mark.parametrize("each", DEPTHS)
@pytest.mark.parametrize("text", [pytest.param(MATRIX, id="hand-made"), *shared("topo_m")])
def test_matrices(text: str, each: int, tmp_path):
    accepted = 0
    for damage in damaged(text, each):
        found = imported(damage, tmp_path / "m.txt")
        if found is not None:
            accepted += 1
            assert oracle.links_of(found.topology, "NV") == oracle.matrix_links(damage), damage
            assert {device.name for device in found.topology.devices} == oracle.matrix_gpus(damage), damage
    assert (
        accepted < each * len(WAYS) * 0.8
    )  # most damage is seen: what passes is in affinities, legends and blanks


XML_TEXTS = [pytest.param(XML, id="hand-made"), *shared("nccl_xml"), *shared("constructed")]


@pytest.mark.parametrize("each", DEPTHS)
@pytest.mark.parametrize("text", XML_TEXTS)
def test_xml(text: str, each: int, tmp_path):
    for damage in damaged(text, each):
        found = imported(damage, tmp_path / "m.xml")
        if found is not None:
            data = damage.encode()
            for stem, tag in (("NV", "nvlink"), ("XGMI", "xgmi")):
                counts = sorted(oracle.xml_links(data, tag).values())
                switched = sorted(oracle.xml_switch_links(data).values())
                direct = [
                    count
                    for pair, count in oracle.links_of(found.topology, stem).items()
                    if any({wire.a, wire.b} == pair for wire in found.topology.connections)
                ]
                assert sorted(direct) == counts, damage
                ports = [wire for wire in found.topology.connections if wire.b.endswith("nvswitch")]
                if stem == "NV":
                    assert sorted(int(wire.kind[2:]) for wire in ports) == switched, damage


@pytest.mark.parametrize("each", DEPTHS)
@pytest.mark.parametrize("text", [pytest.param(TABLES, id="hand-made"), *shared("p2p")])
def test_tables(text: str, each: int):
    for damage in damaged(text, each):
        try:
            rates = parse_p2p_rates(damage)
        except ValueError:
            continue
        assert rates.shape == (len(rates), len(rates)), damage
        for row in rates:  # every row stands in the text
            assert any(
                [float(word) for word in line.split()[1:] if word.replace(".", "").isdigit()] == row.tolist()
                for line in damage.splitlines()
            ), damage


@pytest.mark.parametrize("parse", [parse_topo_matrix, parse_p2p_rates])
def test_noise(parse: Callable[[str], object]):
    rng = random.Random(1)
    letters = "GPU01NVXSY \t\n.D\\P2="
    for _ in range(300):
        with pytest.raises(ValueError, match=r"."):
            parse("".join(rng.choice(letters) for _ in range(rng.randrange(200))))
