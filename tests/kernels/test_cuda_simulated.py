"""The CUDA kernels' bodies, run by numba's simulator: same cases as on a GPU (test_cuda_device.py)."""

import pytest

from tests.kernels.cuda_flag_cases import FLAG_CASES
from tests.kernels.cuda_row_cases import ROW_CASES
from tests.simulated import run_simulated


@pytest.mark.slow
def test_kernels_in_the_simulator():
    assert run_simulated("tests.kernels.cuda_simulation") == dict.fromkeys([*ROW_CASES, *FLAG_CASES], "")
