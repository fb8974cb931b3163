"""Parses XML to a tree of elements with their line numbers, by the standard library's expat.

A document type is refused, so there are no entities to expand and nothing to fetch. (``defusedxml`` refuses the same,
but knows no lines.)
Called by `nccl_form` and `nccl_xml`. Free to change while elements know their lines, and document types, text between
tags and malformed XML are refused with theirs (`tests/topology/importers/test_xml_tree.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

_DEEPEST = 100
# RCCL's own files open with a comment of dashes, which XML forbids and NCCL's reader accepts.
# One that never ends is left for expat to refuse.
_COMMENT = re.compile(rb"<!--.*?(-->|\Z)", re.DOTALL)


@dataclass(eq=False)
class Element:
    """An element: its tag, attributes, line (from 1), and the elements in it."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """This element and all in it, in the order of the text."""
        pending = [self]
        while pending:
            element = pending.pop()
            yield element
            pending += reversed(element.children)


def parse_xml(data: bytes) -> Element:
    """The root element of a document.

    Raises:
        ValueError: Not well-formed, or more than elements with attributes; names the line.
    """
    parser = expat.ParserCreate()
    path = [Element("", {}, 1)]  # from the document to the innermost open element

    def refuse(what: str) -> None:
        raise ValueError(f"line {parser.CurrentLineNumber}: {what}")

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        path[-1].children.append(element)
        path.append(element)
        if len(path) > _DEEPEST:
            refuse(f"elements nested more than {_DEEPEST} deep")

    def text(words: str) -> None:
        if words.strip():
            refuse(f"text between the tags ({words.strip()[:30]!r})")

    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = lambda *_: refuse("a document type declaration (DTD) is not accepted")
    try:
        parser.Parse(_COMMENT.sub(lambda c: b"\n" * c[0].count(b"\n") if c[1] else c[0], data), True)
    except expat.ExpatError as error:
        inside = f", inside <{path[-1].tag}> of line {path[-1].line}" if path[1:] else ""
        raise ValueError(
            f"line {error.lineno}: is not well-formed XML ({expat.ErrorString(error.code)}{inside})"
        ) from None
    except (
        LookupError,
        ValueError,
    ) as error:  # ours, or an encoding that Python does not know, or expat does not
        raise ValueError(re.sub("^(?!line)", "line 1: ", str(error))) from None
    return path[0].children[0]
