"""A small, hardened XML reader: elements with their lines, and nothing that a stranger's file could abuse.

The standard library's expat reads the text; a document type, entities, processing instructions and text
between the tags are refused, and size, depth and number of elements are limited. So there is nothing to
expand and nothing to fetch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

MOST_BYTES = 16 << 20
_MOST_ELEMENTS = 100_000
_DEEPEST = 100
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)


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
    if len(data) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES >> 20} MB, too large for a machine's description")
    # RCCL's own files open with a comment of dashes, which XML forbids and every reader of theirs lets pass.
    # Comments end where the first --> is, and mean nothing; their line breaks stay, for the lines of errors.
    return _Reader().read(_COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), data))


class _Refused(ValueError):
    """What this reader does not accept, though it may be XML."""


class _Reader:
    def __init__(self) -> None:
        self._root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        parser = expat.ParserCreate()
        parser.ordered_attributes = False
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        parser.ProcessingInstructionHandler = self._instruction
        self._parser = parser

    def read(self, data: bytes) -> Element:
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            inside = f", inside <{self._open[-1].tag}> of line {self._open[-1].line}" if self._open else ""
            raise ValueError(
                f"line {error.lineno}: is not well-formed XML ({expat.ErrorString(error.code)}{inside})"
            ) from None
        except _Refused:
            raise
        except (LookupError, ValueError) as error:  # an encoding that Python does not know, or expat does not
            raise ValueError(f"line 1: {error}") from None
        assert self._root is not None, "expat accepts no document without an element"
        return self._root

    def _refuse(self, what: str) -> NoReturn:
        raise _Refused(f"line {self._parser.CurrentLineNumber}: {what}")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > _MOST_ELEMENTS:
            self._refuse(f"more than {_MOST_ELEMENTS} elements")
        if len(self._open) >= _DEEPEST:
            self._refuse(f"elements nested more than {_DEEPEST} deep")
        element = Element(tag, attributes, self._parser.CurrentLineNumber)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, tag: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if text.strip():
            self._refuse(f"text between the tags ({text.strip()[:30]!r})")

    def _doctype(self, *_: object) -> None:
        self._refuse("a document type declaration (DTD) is not accepted")

    def _entity(self, *_: object) -> None:
        self._refuse("an entity declaration is not accepted")

    def _instruction(self, target: str, _: str) -> None:
        self._refuse(f"a processing instruction (<?{target}) is not accepted")
