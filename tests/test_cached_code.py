"""Numba caches machine code under the source of the function's own file. What else was compiled into it must be
part of that source: otherwise a new version with an old cache would run the old kernels."""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"dgcl": "dgcl", "dgcl.planner": "planner", "dgcl.topology": "topology", "dgcl.kernels": "kernels"}
STAMP = re.compile(r'^COMPILED_FROM: Final = "([0-9a-f]*)"\n', re.MULTILINE)


def _modules() -> dict[str, str]:
    """The source of each module that holds compiled functions."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            text = path.read_text()
            if re.search(r"\b(njit|intrinsic)\b", text):
                found.setdefault(".".join([package, *parts]).removesuffix(".__init__"), text)
    return found


def _parts(module: str, modules: dict[str, str]) -> set[str]:
    """The compiled modules that a module imports from, and theirs."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for node in ast.walk(ast.parse(modules[waiting.pop()])):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                new = names & modules.keys() - found - {module}
                found |= new
                waiting += new
    return found


MODULES = _modules()
CACHED = sorted(name for name, text in MODULES.items() if "cache=True" in text and _parts(name, MODULES))


def test_some_modules_have_parts_elsewhere() -> None:
    assert {"dgcl.transport.shared_memory.engine", "dgcl.kernels.rows"} <= set(CACHED)
    assert _parts("dgcl.transport.shared_memory.engine", MODULES) == {
        "dgcl.kernels.futex",
        "dgcl.kernels.copies",
        "dgcl.kernels.half",
        "dgcl.kernels.memory",
        "dgcl.kernels.rows",
    }


@pytest.mark.parametrize("module", CACHED)
def test_cached_code_is_tied_to_all_that_it_was_compiled_from(module: str) -> None:
    parts = sorted(_parts(module, MODULES))
    sources = "".join(STAMP.sub("", MODULES[part]) for part in parts)
    digest = hashlib.sha256(sources.encode()).hexdigest()[:16]
    stamp = STAMP.search(MODULES[module])
    assert stamp is not None, f'{module} needs a line: COMPILED_FROM: Final = "{digest}"'
    assert stamp[1] == digest, (
        f'{", ".join(parts)} changed: in {module} write COMPILED_FROM: Final = "{digest}"'
    )
