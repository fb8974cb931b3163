"""The manual has each verb with its usage and options, and what pages call is understood."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgcl.cli import _parser

ROOT = Path(__file__).resolve().parents[3]
MANUAL = ROOT / "docs" / "cli.md"
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"^(?:\$ )?(?:.*&& )?(?:torchrun .* -m )?dgcl ([^#|>&\n]+)", re.MULTILINE)
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
def test_manual_has_it(command: argparse.ArgumentParser):
    headings = MANUAL.read_text().split("\n## ")
    page = [text for text in headings if text.startswith((f"{command.prog} ", f"{command.prog}\n"))]
    assert len(page) == 1, f"no single heading for {command.prog}"
    assert " ".join(command.format_usage().split()) in " ".join(page[0].split())
    options = {name for action in command._actions for name in action.option_strings} - EVERYWHERE
    assert not {name for name in options if name not in page[0]}


CALLS = {
    call: page.name
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for block in BLOCK.findall(page.read_text().replace("\\\n", ""))
    for call in CALL.findall(block)
}


@pytest.mark.parametrize("call", [pytest.param(call, id=f"{page}: {call}") for call, page in CALLS.items()])
def test_what_pages_call_is_understood(call: str):
    assert callable(_parser().parse_args(shlex.split(call)).run)
