"""The XML reader: elements with lines, and nothing that a stranger's file could abuse."""

import pytest

from dgcl.topology.importers.xml_tree import parse_xml
from tests.support.samples import named


def test_elements_attributes_and_lines():
    root = parse_xml(b'<?xml version="1.0"?>\n<!-- why -->\n<a x="1">\n <b/><c y="&lt;2"/>\n</a>\n')
    assert (root.tag, root.attributes, root.line) == ("a", {"x": "1"}, 3)
    assert [(child.tag, child.attributes, child.line) for child in root.children] == [
        ("b", {}, 4),
        ("c", {"y": "<2"}, 4),
    ]
    assert [element.tag for element in root.walk()] == ["a", "b", "c"]


def test_comments_of_dashes_are_let_pass_and_count_as_lines():
    root = parse_xml(b"<!------\n - Copyright\n ------>\n<a>\n<!-- b -->\n<b/></a>")
    assert [(element.tag, element.line) for element in root.walk()] == [("a", 4), ("b", 6)]
    with pytest.raises(ValueError, match="line 2: is not well-formed"):
        parse_xml(b"<a>\n<!-- for ever </a>")


BOMB = b"<!DOCTYPE a [<!ENTITY b 'bb'><!ENTITY c '&b;&b;'>]>\n<a>&c;</a>"
OUTSIDE = b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>\n<a>&b;</a>"


@named(
    "data, message",
    {
        "entities that grow": (BOMB, "line 1: a document type declaration"),
        "an entity from a file": (OUTSIDE, "line 1: a document type declaration"),
        "an external DTD": (b"<!DOCTYPE a SYSTEM 'http://x/y.dtd'><a/>", "document type"),
        "undefined entity": (b"<a>&b;</a>", "line 1: is not well-formed XML .undefined entity"),
        "cut": (b"<a>\n<b>\n", "line 3: .*no element found.*inside <b> of line 2"),
        "tags crossed": (b"<a>\n<b></a>", "line 2: .*mismatched tag"),
        "attribute twice": (b"<a x='1' x='2'/>", "line 1: .*duplicate attribute"),
        "two roots": (b"<a/><b/>", "line 1: .*junk after document element"),
        "text": (b"<a>words</a>", "line 1: text between the tags .'words'"),
        "a zero byte": (b"<a>\x00</a>", "line 1: .*invalid token"),
        "not UTF-8": (b"<a>\xff</a>", "line 1: .*invalid token"),
        "nothing": (b"", "no element found"),
        "encoding": (b'<?xml version="1.0" encoding="klingon"?><a/>', "line 1: .*encoding"),
        "many bytes": (b'<?xml version="1.0" encoding="big5"?><a/>', "line 1: .*encoding"),
        "too deep": (b"<a>" * 101 + b"</a>" * 101, "nested more than 100 deep"),
    },
)
def test_refused(data: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        parse_xml(data)
