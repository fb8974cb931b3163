"""The CUDA kernels' bodies, run by numba's simulator: same cases as on a GPU (test_cuda_device.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.cuda_flag_cases import FLAG_CASES
from tests.kernels.cuda_row_cases import ROW_CASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cuda_simulation"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", [*ROW_CASES, *FLAG_CASES])
def test_kernel_in_the_simulator(outcome: dict[str, str], name: str) -> None:
    assert outcome[name] == "", outcome[name]
