"""A small, hardened XML reader: elements with their lines, in linear time and bounded memory.

The standard library's expat reads the text. A document type, entities, processing instructions and text between the
tags are refused; bytes, depth, elements, attributes and the length of a tag are limited. So there is nothing to expand
and nothing to fetch. (``defusedxml`` refuses the same constructs, but knows neither lines nor these limits.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

MOST_BYTES = 16 << 20
_MOST_ELEMENTS = 100_000
_DEEPEST = 100
_MOST_ATTRIBUTES = 64  # of an element
_ALL_ATTRIBUTES = 500_000
_LONGEST_TAG = 1 << 16  # bytes from one < to the next: expat keeps a whole tag in memory


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
        ValueError: Not well-formed, more than elements with attributes, or beyond a limit; names the line.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES >> 20} MB, too large for a machine's description")
    text = _without_comments(data)
    _check_tag_lengths(text)
    return _Reader().read(text)


def _without_comments(data: bytes) -> bytes:
    """The document without comments, whose line breaks stay: errors name lines.

    RCCL's own files open with a comment of dashes, which XML forbids and NCCL's reader accepts. So comments are
    removed before expat sees them: each ends at the first ``-->``. One that never ends is left for expat to refuse.
    """
    parts: list[bytes] = []
    at = 0
    while (start := data.find(b"<!--", at)) >= 0 and (end := data.find(b"-->", start + 4)) >= 0:
        parts += (data[at:start], b"\n" * data.count(b"\n", start, end))
        at = end + 3
    return b"".join((*parts, data[at:]))


def _check_tag_lengths(text: bytes) -> None:
    """Refuse a tag (with the text behind it) that is too long, before expat collects its attributes."""
    line = 1
    for part in text.split(b"<"):
        if len(part) > _LONGEST_TAG:
            raise ValueError(
                f"line {line}: a tag, or the text behind it, is longer than {_LONGEST_TAG >> 10} kB"
            )
        line += part.count(b"\n")


class _Refused(ValueError):
    """What this reader does not accept, though it may be XML."""


class _Reader:
    def __init__(self) -> None:
        self._root: Element | None = None
        self._open: list[Element] = []
        self._num_elements = 0
        self._num_attributes = 0
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
        self._num_elements += 1
        self._num_attributes += len(attributes)
        if self._num_elements > _MOST_ELEMENTS:
            self._refuse(f"more than {_MOST_ELEMENTS} elements")
        if len(attributes) > _MOST_ATTRIBUTES:
            self._refuse(f"<{tag[:30]}> has {len(attributes)} attributes, more than {_MOST_ATTRIBUTES}")
        if self._num_attributes > _ALL_ATTRIBUTES:
            self._refuse(f"more than {_ALL_ATTRIBUTES} attributes")
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
