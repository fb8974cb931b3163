"""Every verb and option of the command stands in its manual."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgcl.cli import _parser

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
EVERYWHERE = {"-h", "--help", "--json", "--version"}


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers that run something, below verbs and actions."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for below in group.choices.values():
            yield from commands(below)


@pytest.mark.parametrize("command", [pytest.param(c, id=c.prog) for c in commands(_parser())])
def test_manual_has_it(command: argparse.ArgumentParser) -> None:
    headings = MANUAL.read_text().split("\n## ")
    page = [
        text
        for text in headings
        if text.startswith(f"{command.prog} ") or text.startswith(f"{command.prog}\n")
    ]
    assert len(page) == 1, f"no single heading for {command.prog}"
    options = {name for action in command._actions for name in action.option_strings} - EVERYWHERE
    assert not {name for name in options if name not in page[0]}
