"""The disk cache of compiled code notices a change in any file that a function depends on."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

from dgcl.planner.column_generation.pricing.tree_program import cheapest_trees
from dgcl.planner.compiled import compiled, sources_digest

PACKAGE = """
import sys, importlib
sys.path.insert(0, {folder!r})
from probe.caller import total
print(total(3))
"""


def test_the_stamp_covers_all_compiled_sources() -> None:
    assert sources_digest() in str(cheapest_trees._cache._cache_file._source_stamp)  # type: ignore[attr-defined]

    @compiled
    def twice(x: int) -> int:
        return 2 * x

    assert twice(4) == 8


def test_a_changed_callee_recompiles_its_callers(tmp_path: pathlib.Path) -> None:
    """Two files of a package, the one calling the other's function; only the callee changes."""
    package = tmp_path / "probe"
    package.mkdir()
    source = pathlib.Path(sys.modules["dgcl.planner.compiled"].__file__ or "")
    shutil.copy(source, package / "compiled.py")
    (package / "__init__.py").touch()
    (package / "caller.py").write_text(
        "from probe.compiled import compiled\nfrom probe.callee import part\n\n"
        "@compiled\ndef total(n):\n    return part(n) + part(n)\n"
    )
    outputs = []
    for factor in (1, 10):
        (package / "callee.py").write_text(
            f"from probe.compiled import compiled\n\n@compiled\ndef part(n):\n    return {factor} * n\n"
        )
        code = PACKAGE.format(folder=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        outputs.append(done.stdout.strip())
    assert outputs == ["6", "60"]


def test_a_changed_callee_in_a_subpackage_counts_too(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "probe"
    (package / "inner").mkdir(parents=True)
    source = pathlib.Path(sys.modules["dgcl.planner.compiled"].__file__ or "")
    shutil.copy(source, package / "compiled.py")
    digests = set()
    for factor in (1, 10):
        (package / "inner" / "kernel.py").write_text(
            f"from probe.compiled import compiled\n\n\n@compiled\ndef part(n):\n    return {factor} * n\n"
        )
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        code += "from probe.compiled import sources_digest; print(sources_digest())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 2
