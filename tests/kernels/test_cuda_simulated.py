"""The CUDA kernels' bodies, run by numba's simulator: same cases as on a GPU (test_cuda_device.py)."""

import pytest

from tests.kernels.cuda_flag_cases import FLAG_CASES
from tests.kernels.cuda_row_cases import ROW_CASES
from tests.simulated import run_simulated


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    return run_simulated("tests.kernels.cuda_simulation")


@pytest.mark.parametrize("name", [*ROW_CASES, *FLAG_CASES])
def test_kernel_in_the_simulator(outcome: dict[str, str], name: str):
    assert outcome[name] == "", outcome[name]
