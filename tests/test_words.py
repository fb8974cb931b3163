"""One word for one thing, and the field's word: private names of earlier versions stay out of code and prose.

The glossary is in docs/developing.md. Names are split at underscores and capitals; ordinary English that only
looks like one of these words in prose (a turn, a card of a network) is left alone.
"""

import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Not in any identifier or file name; the glossary has the field's word.
NAMES = re.compile(
    "bells?|naps?|patience|lookout|commitment|stepper|siblings?|farewells?|meetings?|tickets?|mixtures?|dealing"
    "|journeys?|rehang|alike|felled|rent|dear(er|est)?|laps?|contenders?",
    re.IGNORECASE,
)
#: Not the whole name of anything in the source: those are results, arguments, plans, reports.
NOUNS = {"told", "given", "found", "wanted", "made", "asked"}
#: Not in any comment, docstring or page either.
PROSE = re.compile(
    r"\b(bells?|lookout|farewells?|rehang\w*|felled|siblings?|contenders?|journeys?)\b", re.IGNORECASE
)
#: Where the list itself stands, and history.
EXCEPT = {"tests/test_words.py", "CHANGELOG.md"}

PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def tracked(*suffixes: str) -> list[str]:
    """Files of the repository, those that git does not know yet included."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [
        name for name in listed if name.endswith(suffixes) and (ROOT / name).is_file() and name not in EXCEPT
    ]


def identifiers(code: str) -> set[str]:
    """Names in a source, not those in its prose."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def private_names(code: str) -> set[str]:
    """Identifiers of a source with a part that is on the list."""
    words = set(re.findall(r"[A-Za-z_]\w*", code))
    if not any(NAMES.fullmatch(part) for word in words for part in PARTS.findall(word)):
        return set()  # nor in its prose: most files need not be taken to tokens
    return {name for name in identifiers(code) if any(NAMES.fullmatch(part) for part in PARTS.findall(name))}


def private_prose(code: str) -> list[str]:
    """Lines with a word that has no ordinary meaning here."""
    return [line.strip() for line in code.splitlines() if PROSE.search(line)]


@pytest.mark.parametrize("name", ["ring_bell", "_Lookout", "own_bells", "napTime", "say_farewell"])
def test_the_list_sees_a_private_name(name: str):
    assert private_names(f"{name} = 1") == {name}


@pytest.mark.parametrize("name", ["turn", "network_card", "label", "turns_left", "appearance", "tenant"])
def test_ordinary_names_pass(name: str):
    assert not private_names(f"{name} = 1")


def test_names():
    found = {name: private_names((ROOT / name).read_text()) for name in tracked(".py", ".pyi")}
    assert not {name: sorted(names) for name, names in found.items() if names}


def test_results_and_arguments_are_called_that():
    sources = [
        name for name in tracked(".py") if name.startswith(("dgcl/", "planner/", "topology/", "kernels/"))
    ]
    found = {name: NOUNS & identifiers((ROOT / name).read_text()) for name in sources}
    assert not {name: sorted(names) for name, names in found.items() if names}


def test_file_names():
    names = tracked(".py", ".pyi", ".md", ".c", ".pml")
    assert not [n for n in names if any(NAMES.fullmatch(part) for part in PARTS.findall(n))]


def test_prose():
    found = {
        name: private_prose((ROOT / name).read_text()) for name in tracked(".py", ".pyi", ".md", ".pml", ".c")
    }
    assert not {name: lines for name, lines in found.items() if lines}
