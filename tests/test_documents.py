"""The documents name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # links of the web have a colon
PATH = re.compile(r"`((?:topology|planner|kernels|dgcl|tests|examples|docs)/[\w./]+)`")


@pytest.mark.parametrize("document", [pytest.param(d, id=str(d.relative_to(ROOT))) for d in DOCUMENTS])
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    wrong = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    wrong += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not wrong


def test_readme_opens_with_the_purpose_the_five_lines_and_the_two_commands() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    for wanted in (
        "graph neural network",
        "import dgcl",
        "dgcl.init()",
        "dgcl.build_comm_info(",
        "dgcl.dispatch_features(",
        "dgcl.graph_allgather(",
        "make demo",
        "make test",
    ):
        assert wanted in screen
