"""The CUDA kernels' bodies, run by numba's simulator: same cases as on a GPU (test_cuda_device.py)."""

import pytest

from tests.kernels.cuda_flag_cases import FLAG_CASES
from tests.kernels.cuda_row_cases import ROW_CASES
from tests.support.samples import slow
from tests.support.simulated import run_simulated

NAMES = [*ROW_CASES, *FLAG_CASES]


@pytest.mark.parametrize("names", [NAMES[::12], slow(NAMES)], ids=["some", "all"])
def test_kernels_in_the_simulator(names: list[str]):
    assert run_simulated("tests.kernels.cuda_simulation", *names) == dict.fromkeys(names, "")
