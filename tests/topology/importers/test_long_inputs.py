"""Long and hostile inputs: refused or read in time that grows with their length, not with its square.

Each case took from seconds to for ever with a pattern or a check that is quadratic. A linear reader takes a fraction of
a second: what is not is seen by who waits.
"""

from collections.abc import Callable

import pytest

from dgcl.topology import Topology
from dgcl.topology.importers.foreign import refuse_foreign
from dgcl.topology.importers.nccl_xml import parse_nccl_xml
from dgcl.topology.importers.p2p_tables import parse_p2p_rates
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from dgcl.topology.json_form import parse_json
from tests.support.importer_cases import MATRIX, TABLES, XML

LONG = 200_000


def many(unit: str) -> str:
    return unit * (LONG // len(unit))


XML_CASES = {
    "comments that never end": many("<!--"),
    "comments": XML.replace("</system>", many("<!---->") + "</system>"),
    "long unknown names": f'<system version="1" {many("x")}="1"/>',
    "a long tag": f"<{many('a')}/>",
    "open elements": many("<a>"),
    "entities": "<a>" + many("&amp;") + "</a>",
    "attributes that nobody knows": "<system version='1'>"
    + "".join(f"<cpu numaid='{i}' u{i}a='' u{i}b='' u{i}c=''/>" for i in range(20_000))
    + "</system>",
}
XML_CASES["machines"] = XML.replace(
    "</system>", "".join(f'<cpu numaid="0" host_hash="{i}"/>' for i in range(30_000)) + "</system>"
)
JSON_CASES = {
    "keys, the last one twice": "{" + ",".join(f'"k{i}":1' for i in range(100_000)) + ',"k99999":2}',
    "open lists": many("["),
    "digits": many("1"),
    "a long key": f'{{"{many("x")}": 1}}',
}
TEXT_CASES = {
    "a prompt": many("a") + "@" + many("a"),
    "a prompt after a matrix": MATRIX + "x@" + many("a"),
    "blanks": " " * LONG,
    "prompt signs": many("# "),
    "commands": many("nvidia-smi "),
    "underlining": many("\x1b[0"),
    "colons and blanks": many("a: "),
    "digits": MATRIX.replace("0-15,32-47", many("1"), 1),
    "a list": MATRIX.replace("0-15,32-47", many("1,"), 1),
    "columns": many("GPU0 "),
    "headers": many("GPU0 GPU1\n"),
    "lines": many("x\n"),
    "UUIDs": many("GPU 0: x (UUID: GPU-\n"),
    "titles": many("P2P Connectivity Matrix\n"),
    "a table": TABLES.replace("700.00", many("7"), 1),
}


def takes_linear_time(parse: Callable[[], object]) -> None:
    complaint = ""
    try:
        parse()
    except ValueError as error:
        complaint = str(error)
    assert len(complaint) < 500


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in XML_CASES.items()])
def test_xml(text: str):
    takes_linear_time(lambda: parse_nccl_xml(text.encode()))


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TEXT_CASES.items()])
@pytest.mark.parametrize("parse", [parse_topo_matrix, parse_p2p_rates, refuse_foreign])
def test_text(parse: Callable[[str], object], text: str):
    takes_linear_time(lambda: parse(text))


def test_notes_are_short():
    unknown = "".join(f"<cpu numaid='{i}' unknown{i}{'x' * 100}=''/>" for i in range(2, 50))
    machine = parse_nccl_xml(XML.replace("</system>", unknown + "</system>").encode())
    assert any(note.endswith("[...]") for note in machine.notes)
    assert all(len(note) < 2000 for note in machine.notes)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in JSON_CASES.items()])
def test_json(text: str):
    takes_linear_time(lambda: Topology.from_json(parse_json(text)))


def test_a_file_of_too_many_machines_is_refused_by_its_line():
    with pytest.raises(ValueError, match=r"line \d+: more than 4096 <cpu>"):
        parse_nccl_xml(XML_CASES["machines"].encode())
