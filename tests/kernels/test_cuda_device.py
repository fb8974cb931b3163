"""The CUDA kernels on a GPU: same cases as in the simulator (test_cuda_simulated.py), but larger."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.cuda_flag_cases import FLAG_CASES
from tests.kernels.cuda_machines import DeviceMachine
from tests.kernels.cuda_row_cases import ROW_CASES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def loaded() -> Iterator[DeviceMachine]:
    machine = DeviceMachine()
    yield machine
    torch.cuda.synchronize()


@pytest.fixture
def machine(loaded: DeviceMachine) -> Iterator[DeviceMachine]:
    yield loaded
    loaded.forget()


@pytest.mark.parametrize("name", ROW_CASES)
def test_rows_on_a_gpu(machine: DeviceMachine, name: str):
    run, case = ROW_CASES[name]
    run(machine, case)


@pytest.mark.parametrize("name", FLAG_CASES)
def test_flags_on_a_gpu(machine: DeviceMachine, name: str):
    FLAG_CASES[name](machine)


def test_every_kernel_loads_without_spilling(machine: DeviceMachine):
    from dgcl.kernels.cuda_catalogue import catalogue

    for name in catalogue():
        kernel = machine.kernels[name]
        registers, local_bytes = machine.driver.registers(kernel.handle)
        assert 0 < registers <= 64, name
        assert local_bytes == 0, name
        assert machine.kernels.blocks_at_once(kernel, 256) >= 4 * machine.kernels.num_multiprocessors
