"""Figures in a page, between two comments that name them; all that a command may change there.

<!-- scale: begin -->

| ranks | seconds |
...

<!-- scale: end -->
"""

from __future__ import annotations

from pathlib import Path


def print_into(page: str, name: str, text: str) -> None:
    """Print figures, and if a page is named, put them into it: :func:`write_between`."""
    print(text, flush=True)
    if page:
        write_between(page, name, text)


def write_between(page: str, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` in a page.

    Raises:
        ValueError: the page has not each of the two once, in this order.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = Path(page).read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1 or whole.index(begin) > whole.index(end):
        raise ValueError(f"{page}: must have {begin!r} and, after it, {end!r}, each once")
    before, rest = whole.split(begin)
    Path(page).write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")
