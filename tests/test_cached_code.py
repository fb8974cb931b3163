"""All machine code is cached in one way, with one kind of stamp (:mod:`dgcl.kernels.kernel_cache`)."""

import re
from pathlib import Path

from dgcl.kernels.kernel_cache import KernelCache, compiled_together
from dgcl.transport.shared_memory import engine

ROOT = Path(__file__).resolve().parents[1]


def test_numbas_own_cache_is_used_nowhere():
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("dgcl", "planner", "topology", "kernels")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\bcache=True\b|COMPILED_FROM", path.read_text())
    ]
    assert found == []


def test_the_engine_is_stamped_with_the_kernels_that_it_calls():
    assert isinstance(engine.advance._cache, KernelCache)  # type: ignore[attr-defined]
    assert compiled_together(engine.__name__) == {
        engine.__name__,
        *(f"dgcl.kernels.{name}" for name in ("additions", "copies", "futex", "half", "memory", "rows")),
    }
