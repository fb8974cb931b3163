"""Fixtures of the ``gpu`` tests: the device, how much data, and findings that go into the report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.parts import FINDINGS, QUICK
from tests.gpu.row_speed import Size


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the ``gpu`` tests of this folder where there is no device."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu") is not None and "tests/gpu/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def say() -> Callable[[str], None]:
    """Print a line at once: what was said stays when the part is ended."""

    def line(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    return line


@pytest.fixture
def found(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """Print findings, and append them to the file that the runner reads."""

    def record(findings: dict[str, Any]) -> None:
        for what, value in findings.items():
            if not isinstance(value, list):  # tables are printed line by line
                say(f"- {what}: {value}")
        if path := os.environ.get(FINDINGS):
            with open(path, "a") as file:
                file.write(json.dumps({"test": request.node.name, **findings}, default=str) + "\n")

    return record


@pytest.fixture
def size() -> Size:
    """How much data: little under ``--quick``."""
    return Size(num_bytes=1 << 26, num_peers=3, repeats=3) if os.environ.get(QUICK) else Size()


@pytest.fixture
def device() -> str:
    """Where communicators put their rows."""
    return "cuda"


@pytest.fixture
def gpu() -> Any:
    """The current CUDA device."""
    from tests.gpu.device import Gpu

    return Gpu()
