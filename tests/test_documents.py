"""The documents name files that exist, and the reference has every public name."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # links of the web have a colon
PATH = re.compile(r"`((?:topology|planner|kernels|dgcl|tests|examples|docs)/[\w./]+)`")


@pytest.mark.parametrize("document", [pytest.param(d, id=str(d.relative_to(ROOT))) for d in DOCUMENTS])
def test_links_and_paths_lead_somewhere(document: Path):
    text = document.read_text()
    wrong = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    wrong += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not wrong


def test_readme_opens_with_the_purpose_the_three_lines_and_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    screen = "\n".join(text.splitlines()[:35])
    for wanted in (
        "graph neural network",
        "dgcl.init()",
        "dgcl.dispatch(",
        "dgcl.distribute(",
        "make demo",
        "make test",
    ):
        assert wanted in screen


def test_messages_of_the_page_on_troubleshooting_are_those_of_the_source():
    source = "\n".join(
        path.read_text() for folder in ("dgcl", "topology") for path in (ROOT / folder).rglob("*.py")
    )
    source = re.sub(r'"\s+f?"', "", source).replace('\\"', '"')  # strings that stand side by side are one
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert not [part for each in messages for part in re.split(r" \.\.\. ?", each) if part not in source]


PUBLIC = [
    "dgcl",
    *(f"dgcl.{name}" for name in ("bench", "frameworks", "graph", "nn", "partition", "planner", "relation")),
    "dgcl.topology",
]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)


def entries() -> list[str]:
    return [name for page in REFERENCE for name in ENTRY.findall(page.read_text())]


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_in_the_reference_once(module: str):
    found = entries()
    assert len(found) == len(set(found))
    for name in importlib.import_module(module).__all__:
        if f"{module}.{name}" not in PUBLIC and not name.startswith("__"):
            assert {f"{module}.{name}", f"dgcl.{name}"} & set(found), (
                f"{module}.{name} is in no page of docs/reference"
            )


@pytest.mark.parametrize("name", entries())
def test_an_entry_is_documented(name: str):
    """Functions and methods name each of their parameters; what is said of constants stands in the source below."""
    if "dgl_block" in name:
        pytest.importorskip("dgl")
    value = pkgutil.resolve_name(name)
    if not callable(value):
        return
    assert value.__doc__
    if inspect.isfunction(value):
        arguments = value.__doc__.partition("Args:")[2]
        parameters = list(inspect.signature(value).parameters)
        if len(parameters) > 1:
            assert not [p for p in parameters if not re.search(rf"\b{p}\b", arguments)]


def test_the_members_of_a_communicator_are_all_in_the_reference():
    """In the order of the page, which names each."""
    page = (ROOT / "docs/reference/communicator.md").read_text()
    listed = re.findall(r"^        - (\w+)$", page, re.MULTILINE)
    members = [name for name in dir(importlib.import_module("dgcl").Communicator) if name[0] != "_"]
    assert sorted(listed) == members


def test_editors_see_the_names_that_load_on_first_use():
    """``dgcl/__init__.pyi`` has what ``dgcl.__all__`` has; the pages are made from it."""
    stub = ast.parse((ROOT / "dgcl" / "__init__.pyi").read_text())
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == set(importlib.import_module("dgcl").__all__)


@pytest.mark.parametrize(
    "name", [path.stem for path in (ROOT / "docs/figures").glob("[a-z]*.py") if path.stem != "framework"]
)
def test_each_figure_has_its_marks(name: str):
    """In the page that its file names, each once."""
    module = importlib.import_module(f"docs.figures.{name}")
    page = (ROOT / "docs" / module.PAGE).read_text()
    assert module.FIGURES
    for mark in module.FIGURES:
        assert page.count(f"<!-- {mark}: begin -->") == page.count(f"<!-- {mark}: end -->") == 1
