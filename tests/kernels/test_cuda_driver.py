"""What the driver is told, by Python and by the compiled enqueuer, with Python functions in its place.

That arguments are as declared is shown with NVIDIA's declarations (test_cuda_declarations.py).
"""

import ctypes
from typing import Any

import pytest

from dgcl.kernels.cuda_catalogue import Kernel
from dgcl.kernels.cuda_driver import CudaError, Driver, open_driver
from dgcl.kernels.cuda_launch import Kernels, Loaded, Prepared


class FakeLibrary:
    """A driver made of Python functions. Those that compiled code calls are C callbacks."""

    def __init__(self):
        self.launches: list[tuple[Any, ...]] = []
        self.refuse: str | None = None
        self.refused: list[bytes] = []  # texts of kernels
        self.loaded: list[int] = []
        void, uint, callback = ctypes.c_void_p, ctypes.c_uint, ctypes.CFUNCTYPE
        self.cuLaunchKernel = callback(ctypes.c_int, void, *[uint] * 7, void, ctypes.POINTER(void), void)(
            self._launch
        )

    def _launch(self, kernel: int, gx: int, gy: int, gz: int, bx: int, *rest: Any) -> int:
        stream, parameters = rest[3], rest[4]
        values = [ctypes.c_int64.from_address(parameters[i]).value for i in range(2)]
        self.launches.append((kernel, gx, bx, stream, *values))
        return 2 if self.refuse == "cuLaunchKernel" else 0

    def cuInit(self, flags: Any) -> int:
        return 100 if self.refuse == "cuInit" else 0

    def cuGetErrorName(self, code: Any, name: Any) -> int:
        names = {
            2: b"CUDA_ERROR_OUT_OF_MEMORY",
            100: b"CUDA_ERROR_NO_DEVICE",
            222: b"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        }
        name._obj.value = names.get(code.value)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = ordinal.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: Any, device: Any) -> int:
        value._obj.value = {16: 132, 75: 9, 76: 0}[which.value]
        return 0

    def cuModuleLoadDataEx(self, module: Any, image: Any, count: Any, options: Any, values: Any) -> int:
        module._obj.value = len(image.value)
        assert (count.value, list(options), values[1]) == (2, [5, 6], 4096)
        if self.refuse == "cuModuleLoadDataEx" or image.value in self.refused:
            ctypes.memmove(values[0], b"ptxas fatal:\n too new\0", 23)
            return 222
        return 0

    def cuFuncLoad(self, function: Any) -> int:
        self.loaded.append(function.value)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        function._obj.value = module.value * 10
        assert name.value.startswith(b"dgcl_")
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, count: Any, function: Any, threads: Any, shared: Any
    ) -> int:
        count._obj.value = 2048 // threads.value
        return 0


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


def ptx_of(kernel: Kernel, capability: tuple[int, int]) -> str:
    return f"{kernel.name} for sm_{capability[0]}{capability[1]}"


def test_kernels_are_loaded_once_and_at_once(library: FakeLibrary):
    asked = []

    def ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
        asked.append((kernel.name, capability))
        return ptx_of(kernel, capability)

    kernels = Kernels(Driver(library), 0, ptx)
    first = kernels["signal_wait"]
    assert kernels["signal_wait"] is first
    assert asked == [("signal_wait", (9, 0))]
    assert first == Loaded("signal_wait", 7, 10 * len("signal_wait for sm_90"))
    assert library.loaded == [first.handle]
    assert kernels.blocks_at_once(first, 256) == 132 * 8


def test_an_unknown_kernel_is_an_error(library: FakeLibrary):
    with pytest.raises(KeyError, match="gather_3"):
        Kernels(Driver(library), 0, ptx_of)["gather_3"]


def test_refused_ptx_is_an_error(library: FakeLibrary):
    library.refuse = "cuModuleLoadDataEx"
    told = r"cuModuleLoadDataEx: CUDA_ERROR_UNSUPPORTED_PTX_VERSION: ptxas fatal: too new \(222\)"
    with pytest.raises(CudaError, match=told) as caught:
        Kernels(Driver(library), 0, ptx_of)["signal_wait"]
    assert caught.value.code == 222


def test_ptx_that_a_driver_refuses_is_replaced_by_older_ptx(library: FakeLibrary, caplog):
    caplog.set_level("INFO", "dgcl")
    library.refused = [b"9.0", b"8.0"]
    tried: list[str] = []

    def ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
        tried.append(".".join(map(str, capability)))
        return tried[-1]

    kernels = Kernels(Driver(library), 0, ptx)
    assert kernels["signal_wait"].handle == 30
    assert tried == ["9.0", "8.0", "7.5"]
    assert "refuses kernels for compute capability 9.0 (cuModuleLoadDataEx" in caplog.text
    assert kernels["begin"].handle == 30
    assert tried[3:] == ["7.5"], "what was refused is asked for again"


def test_no_device_is_an_error(library: FakeLibrary):
    library.refuse = "cuInit"
    with pytest.raises(CudaError, match="NO_DEVICE") as caught:
        Driver(library)
    assert caught.value.code == 100


def test_no_driver_is_an_error(monkeypatch):
    def missing(name: str):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CudaError, match=r"no driver on this machine: libcuda\.so\.1"):
        open_driver()


def test_prepared_launches_repeat_on_the_stream_of_the_call(library: FakeLibrary):
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 7, 256, 111, 2**40)
    prepared.launch(Loaded("two", 2, 600), 1, 32, -1, 0)
    for stream in (70, 80):
        prepared.enqueue(stream)
    assert library.launches == [
        (500, 7, 256, 70, 111, 2**40),
        (600, 1, 32, 70, -1, 0),
        (500, 7, 256, 80, 111, 2**40),
        (600, 1, 32, 80, -1, 0),
    ]


def test_launches_without_blocks_are_left_out(library: FakeLibrary):
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 0, 256, 1, 2)
    prepared.copy(1, 2, 0)
    assert len(prepared) == 0
    prepared.enqueue(1)
    assert library.launches == []


def test_a_refused_operation_is_named(library: FakeLibrary):
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 1, 1, 1, 2)
    library.refuse = "cuLaunchKernel"
    with pytest.raises(CudaError, match=r"operation 0 \(one\): CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        prepared.enqueue(1)


def test_parameters_are_counted(library: FakeLibrary):
    with pytest.raises(ValueError, match="parameters: one takes 2, got 3"):
        Prepared(Driver(library)).launch(Loaded("one", 2, 500), 1, 1, 1, 2, 3)


def test_what_a_driver_lacks_is_an_error_of_the_driver(library: FakeLibrary):
    """Not an AttributeError, which nobody expects of a machine."""
    with pytest.raises(CudaError, match=r"cuMemcpyAsync: CUDA_ERROR_NOT_FOUND, .* too old for it \(500\)"):
        Prepared(Driver(library)).copy(1, 2, 3)
    with pytest.raises(CudaError, match=r"cuIpcGetMemHandle: CUDA_ERROR_NOT_FOUND, .* \(500\)") as caught:
        Driver(library).export_memory(1)
    assert caught.value.code == 500
