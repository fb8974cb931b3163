"""One word for one thing in names of files and in public names: private words of earlier versions stay out of them.

The glossary is in docs/developing.md. Names are split at underscores and capitals. Names that no user and no other file
sees (arguments of private functions, local variables, what begins with an underscore) are everybody's own business.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_files import ROOT, sources

#: Not in any public name or name of a file; the glossary has the field's word.
NAMES = re.compile(
    "bells?|naps?|patience|lookout|commitment|stepper|siblings?|farewells?|meetings?|tickets?|mixtures?|dealing"
    "|journeys?|rehang|alike|felled|rent|dear(er|est)?|laps?|contenders?",
    re.IGNORECASE,
)
#: Not the whole name of anything public: those are results, arguments, plans, reports.
NOUNS = {"told", "given", "found", "wanted", "made", "asked"}

PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_private_word(name: str) -> bool:
    return name in NOUNS or any(NAMES.fullmatch(part) for part in PARTS.findall(name))


def public_names(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Names that others may use: of functions and their arguments, classes and their members, constants."""
    for node in tree.body:
        names = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = ast.walk(node.args)
            names = [node.name, *(each.arg for each in every if isinstance(each, ast.arg))]
        elif isinstance(node, ast.ClassDef):
            names = [node.name, *(public_names(node) if node.name[0] != "_" else ())]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        if names and (names[0][0] != "_" or names[0] == "__init__"):
            yield from (name for name in names if name[0] != "_")


def private_words(code: str) -> list[str]:
    """Public names of a source with a word that is on the list."""
    return sorted({name for name in public_names(ast.parse(code)) if is_private_word(name)})


@pytest.mark.parametrize(
    "code, name",
    [
        ("def ring_bell(): ...", "ring_bell"),
        ("class Lookout: ...", "Lookout"),
        ("class Rank:\n    own_bells: int = 0", "own_bells"),
        ("def fit(mixture=None): ...", "mixture"),
        ("class Fit:\n    def __init__(self, mixture): ...", "mixture"),
        ("class Plan:\n    def asked(self): ...", "asked"),
        ("SIBLINGS = ()", "SIBLINGS"),
    ],
)
def test_the_list_sees_a_public_name(code: str, name: str):
    assert private_words(code) == [name]


@pytest.mark.parametrize(
    "code",
    [
        "def wait():\n    patience, mixture = 3, 2\n    given = found = patience",
        "def _ring_bell(given): ...",
        "class _Lookout:\n    bells = 3",
        "turn = network_card = label = turns_left = appearance = tenant = 0",
    ],
    ids=["local", "private function", "private class", "ordinary words"],
)
def test_other_names_pass(code: str):
    assert not private_words(code)


def test_public_names():
    files = [path for folder in ("dgcl", "planner", "topology", "kernels") for path in sources(folder)]
    found = {str(path.relative_to(ROOT)): private_words(path.read_text()) for path in files}
    assert len(found) > 100
    assert not {name: names for name, names in found.items() if names}


def test_file_names():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    names = [name for name in listed if Path(name).suffix in (".py", ".pyi", ".md", ".c", ".pml")]
    assert len(names) > 100
    assert not [n for n in names if any(NAMES.fullmatch(part) for part in PARTS.findall(n))]
