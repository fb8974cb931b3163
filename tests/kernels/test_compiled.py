"""Cached machine code is fresh, is compiled once, and is kept where there is room."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLEE = "from dgcl.kernels.compiled import compiled\n\nSCALE = {}\n\n@compiled\ndef part(n):\n    return SCALE * n\n"
CALLER = """
from probe.callee import SCALE, part
from dgcl.kernels.compiled import compiled

@compiled
def by_function(n):
    return part(n) + part(n)

@compiled
def by_constant(n):
    return SCALE * n * 2
"""


def run(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )
    return done.stdout.strip()


def test_what_is_compiled_in_from_another_file_counts(tmp_path):
    package = tmp_path / "probe"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "caller.py").write_text(CALLER)
    outputs = []
    for factor in (1, 10):
        (package / "callee.py").write_text(CALLEE.format(factor))
        outputs.append(
            run(
                f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
                "from probe.caller import by_constant, by_function\n"
                "print(by_function(3), by_constant(3))"
            )
        )
    assert outputs == ["6 6", "60 60"]


FLOATS = """
import sys
from numba.core import typed_passes, types
from dgcl.kernels import rows
from dgcl.kernels.compiled import compile_all
from dgcl.transport import precompile
seen = set()
lower = typed_passes.NativeLowering.run_pass
def watched(self, state):
    if any(isinstance(kind, types.Float) for kind in state.typemap.values()):
        seen.add(state.func_id.func_qualname)
    return lower(self, state)
typed_passes.NativeLowering.run_pass = watched
precompile.prepare()
assert rows.sum_rows.overloads
print(*sorted(seen))
"""


@pytest.mark.slow
def test_no_address_becomes_a_float(tmp_path):
    """Numba makes a float64 of a signed and an unsigned integer, which is exact below 2**53 only."""
    assert run(FLOATS, NUMBA_CACHE_DIR=str(tmp_path)) == "_sum_16bit"
