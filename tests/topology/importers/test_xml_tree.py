"""The XML reader: elements with lines, and nothing that a stranger's file could abuse."""

from __future__ import annotations

import pytest

from dgcl.topology.importers.xml_tree import parse_xml


def test_elements_attributes_and_lines() -> None:
    root = parse_xml(b'<?xml version="1.0"?>\n<!-- why -->\n<a x="1">\n <b/><c y="&lt;2"/>\n</a>\n')
    assert (root.tag, root.attributes, root.line) == ("a", {"x": "1"}, 3)
    assert [(child.tag, child.attributes, child.line) for child in root.children] == [
        ("b", {}, 4),
        ("c", {"y": "<2"}, 4),
    ]
    assert [element.tag for element in root.walk()] == ["a", "b", "c"]


def test_comments_of_dashes_are_let_pass_and_count_as_lines() -> None:
    root = parse_xml(b"<!------\n - Copyright\n ------>\n<a>\n<!-- b -->\n<b/></a>")
    assert [(element.tag, element.line) for element in root.walk()] == [("a", 4), ("b", 6)]
    with pytest.raises(ValueError, match="line 2: is not well-formed"):
        parse_xml(b"<a>\n<!-- for ever </a>")


BOMB = b"<!DOCTYPE a [<!ENTITY b 'bb'><!ENTITY c '&b;&b;'>]>\n<a>&c;</a>"
OUTSIDE = b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>\n<a>&b;</a>"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(BOMB, "line 1: a document type declaration", id="entities that grow"),
        pytest.param(OUTSIDE, "line 1: a document type declaration", id="an entity from a file"),
        pytest.param(b"<!DOCTYPE a SYSTEM 'http://x/y.dtd'><a/>", "document type", id="an external DTD"),
        pytest.param(
            b"<a>&b;</a>", "line 1: is not well-formed XML .undefined entity", id="undefined entity"
        ),
        pytest.param(b"<a>\n<b>\n", "line 3: .*no element found.*inside <b> of line 2", id="cut"),
        pytest.param(b"<a>\n<b></a>", "line 2: .*mismatched tag", id="tags crossed"),
        pytest.param(b"<a x='1' x='2'/>", "line 1: .*duplicate attribute", id="attribute twice"),
        pytest.param(b"<a/><b/>", "line 1: .*junk after document element", id="two roots"),
        pytest.param(b"<a>words</a>", "line 1: text between the tags .'words'", id="text"),
        pytest.param(b"<a>\x00</a>", "line 1: .*invalid token", id="a zero byte"),
        pytest.param(b"<a>\xff</a>", "line 1: .*invalid token", id="not UTF-8"),
        pytest.param(b"", "no element found", id="nothing"),
        pytest.param(b'<?xml version="1.0" encoding="klingon"?><a/>', "line 1: .*encoding", id="encoding"),
        pytest.param(b'<?xml version="1.0" encoding="big5"?><a/>', "line 1: .*encoding", id="many bytes"),
        pytest.param(b"<a>" * 101 + b"</a>" * 101, "nested more than 100 deep", id="too deep"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_xml(data)
