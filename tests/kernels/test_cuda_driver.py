"""What the driver is told, by Python and by the compiled enqueuer, without a driver.

Two stand-ins: Python functions (``FakeLibrary``), and where a C compiler and NVIDIA's ``cuda.h`` are at
hand, a shared library with the real declarations (``driver_stub.c``), which also proves order and width of
the arguments.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dgcl.kernels.cuda_catalogue import Kernel
from dgcl.kernels.cuda_driver import CudaError, Driver, open_driver
from dgcl.kernels.cuda_launch import Kernels, Loaded, Prepared

PLACES = [Path("/usr/local/cuda/include"), Path("/usr/include")]
if "CUDA_HOME" in os.environ:  # a toolkit, or the folder of one of the packages from PyPI
    home = Path(os.environ["CUDA_HOME"])
    PLACES += [home / "include", home.parent / "cuda_runtime" / "include"]
INCLUDES = [path for path in PLACES if (path / "cuda.h").is_file()]


class FakeLibrary:
    """A driver made of Python functions. Those that compiled code calls are C callbacks."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.refuse: str | None = None
        self.refused: list[bytes] = []  # texts of kernels
        self.unloaded: list[int] = []
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
        value._obj.value = {16: 132, 75: 9, 76: 0, 122: 1}[which.value]
        return 0

    def cuModuleLoadDataEx(self, module: Any, image: Any, count: Any, options: Any, values: Any) -> int:
        module._obj.value = len(image.value)
        assert (count.value, list(options), values[1]) == (2, [5, 6], 4096)
        if self.refuse == "cuModuleLoadDataEx" or image.value in self.refused:
            ctypes.memmove(values[0], b"ptxas fatal:\n too new\0", 23)
            return 222
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        self.unloaded.append(module.value)
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


def test_kernels_are_loaded_once_and_unloaded(library: FakeLibrary) -> None:
    asked = []

    def ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
        asked.append((kernel.name, capability))
        return ptx_of(kernel, capability)

    kernels = Kernels(Driver(library), 0, ptx)
    first = kernels["signal_wait"]
    assert kernels["signal_wait"] is first
    assert asked == [("signal_wait", (9, 0))]
    assert first == Loaded("signal_wait", 11, 10 * len("signal_wait for sm_90"))
    assert kernels.blocks_at_once(first, 256) == 132 * 8
    kernels.close()
    assert library.unloaded == [len("signal_wait for sm_90")]
    assert kernels["signal_wait"] is not first


def test_an_unknown_kernel_is_an_error(library: FakeLibrary) -> None:
    with pytest.raises(KeyError, match="gather_3"):
        Kernels(Driver(library), 0, ptx_of)["gather_3"]


def test_refused_ptx_is_an_error(library: FakeLibrary) -> None:
    library.refuse = "cuModuleLoadDataEx"
    told = r"cuModuleLoadDataEx: CUDA_ERROR_UNSUPPORTED_PTX_VERSION: ptxas fatal: too new \(222\)"
    with pytest.raises(CudaError, match=told) as caught:
        Kernels(Driver(library), 0, ptx_of)["signal_wait"]
    assert caught.value.code == 222


def test_ptx_that_a_driver_refuses_is_replaced_by_older_ptx(
    library: FakeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_no_device_is_an_error(library: FakeLibrary) -> None:
    library.refuse = "cuInit"
    with pytest.raises(CudaError, match="NO_DEVICE") as caught:
        Driver(library)
    assert caught.value.code == 100


def test_no_driver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CudaError, match=r"no driver on this machine: libcuda\.so\.1"):
        open_driver()


def test_prepared_launches_repeat_on_the_stream_of_the_call(library: FakeLibrary) -> None:
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 7, 256, 111, 2**40)
    prepared.launch(Loaded("two", 2, 600), 1, 32, -1, 0, stream=1)
    for streams in ([70, 71], [80, 81]):
        prepared.enqueue(streams)
    assert library.launches == [
        (500, 7, 256, 70, 111, 2**40),
        (600, 1, 32, 71, -1, 0),
        (500, 7, 256, 80, 111, 2**40),
        (600, 1, 32, 81, -1, 0),
    ]


def test_launches_without_blocks_are_left_out(library: FakeLibrary) -> None:
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 0, 256, 1, 2)
    prepared.copy(1, 2, 0)
    assert len(prepared) == 0
    prepared.enqueue([1])
    assert library.launches == []


def test_a_refused_operation_is_named(library: FakeLibrary) -> None:
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 1, 1, 1, 2)
    library.refuse = "cuLaunchKernel"
    with pytest.raises(CudaError, match=r"operation 0 \(one\): CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        prepared.enqueue([1])


def test_parameters_are_counted(library: FakeLibrary) -> None:
    with pytest.raises(ValueError, match="parameters: one takes 2, got 3"):
        Prepared(Driver(library)).launch(Loaded("one", 2, 500), 1, 1, 1, 2, 3)


def test_a_stream_that_is_not_given_is_an_error(library: FakeLibrary) -> None:
    prepared = Prepared(Driver(library))
    prepared.launch(Loaded("one", 2, 500), 1, 1, 1, 2, stream=1)
    with pytest.raises(ValueError, match="streams: expected at least 2, got 1"):
        prepared.enqueue([1])


def test_what_a_driver_lacks_is_an_error(library: FakeLibrary) -> None:
    with pytest.raises(CudaError, match="cuStreamWaitValue64_v2"):
        Prepared(Driver(library)).wait_value(64, 1, 0)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not INCLUDES:
        pytest.skip("needs a C compiler and cuda.h")
    target = tmp_path_factory.mktemp("driver") / "libstub.so"
    source = Path(__file__).with_name("driver_stub.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-I{INCLUDES[0]}", str(source), "-o", str(target)], check=True
    )
    return ctypes.CDLL(str(target))


def written(stub: ctypes.CDLL, count: int) -> list[list[int]]:
    """The last entries of the stub's log."""
    log = (ctypes.c_longlong * 8 * 64).in_dll(stub, "stub_log")
    calls = ctypes.c_int.in_dll(stub, "stub_calls").value
    return [list(log[(calls - count + i) % 64]) for i in range(count)]


def test_every_operation_reaches_the_driver_as_declared(stub: ctypes.CDLL) -> None:
    prepared = Prepared(Driver(stub))
    prepared.launch(Loaded("one", 2, 1000), 2**31 - 1, 256, 111, -222)
    prepared.wait_value(0x7F0000000008, 3, 1, stream=1)
    prepared.write_value(2000, 3, 2)
    prepared.record_event(3000)
    prepared.wait_event(3000, stream=1)
    prepared.copy(4000, 5000, 2**40, stream=1)
    prepared.enqueue([77, 0x7F0000000088], call=10)
    assert written(stub, 6) == [
        [0, 1000, 2**31 - 1, 256, 77, 111, -222, 1],
        [1, 0x7F0000000088, 0x7F0000000008, 31, 0, 0, 0, 0],
        [2, 77, 2000, 32, 0, 0, 0, 0],
        [3, 3000, 77, 0, 0, 0, 0, 0],
        [4, 0x7F0000000088, 3000, 0, 0, 0, 0, 0],
        [5, 4000, 5000, 2**40, 0x7F0000000088, 0, 0, 0],
    ]


def test_the_place_of_a_refusal_is_told(stub: ctypes.CDLL) -> None:
    prepared = Prepared(Driver(stub))
    prepared.write_value(2000, 1, 0)
    prepared.wait_value(0, 1, 0)
    with pytest.raises(CudaError, match=r"operation 1 \(wait\): CUDA_ERROR_INVALID_VALUE \(1\)") as caught:
        prepared.enqueue([5])
    assert caught.value.code == 1


def test_every_driver_function_is_called_as_declared(stub: ctypes.CDLL) -> None:
    driver = Driver(stub)
    assert driver.capability(2) == (9, 0)
    assert driver.num_multiprocessors(2) == 132
    assert driver.can_wait_in_streams(2)
    module = driver.load_module("A module")
    assert module == ord("A")
    function = driver.function(module, "dgcl_kernel")
    assert function == 1000 * ord("A") + ord("k")
    assert driver.registers(function) == (40, 8)
    assert driver.blocks_per_multiprocessor(function, 256) == 8
    driver.unload_module(module)
    assert driver.version() == (13, 1)
    assert driver.allocate(2**40) == 2**40 + 1
    driver.free(77)
    handle = driver.export_memory(3)
    assert handle == bytes(range(3, 67))
    assert driver.open_memory(handle) == 3 * 10_000 + 66 * 10 + 1
    driver.close_memory(99)
    assert driver.register_host(0x5000, 4096) == 0x5001
    driver.unregister_host(0x5000)
    assert driver.allocate_host(2**33) == (2**33 + 1, 2**33 + 2)
    driver.free_host(88)
    driver.load_function(function)
    assert [line[:2] for line in written(stub, 2)] == [[19, 88], [20, function]]
    assert [line[:4] for line in written(stub, 7)[:5]] == [
        [6, ord("A"), 0, 0],
        [10, 77, 0, 0],
        [7, 99, 0, 0],
        [8, 0x5000, 4096, 1],
        [9, 0x5000, 0, 0],
    ]
    with pytest.raises(CudaError, match=r"cuDeviceGetAttribute: CUDA_ERROR_OF_THE_STUB \(101\)"):
        driver.capability(3)


def test_every_function_for_streams_is_called_as_declared(stub: ctypes.CDLL) -> None:
    driver = Driver(stub)
    assert driver.device_name(2) == "AAA"
    assert driver.uuid(2) == bytes(range(42, 58)).hex()
    assert driver.current_context() == 501
    driver.enable_peer_access(502)  # had it already
    driver.enable_peer_access(503)
    with pytest.raises(CudaError):
        driver.enable_peer_access(504)
    assert [driver.create_stream(level) for level in (0, 2, 5, 99)] == [611, 611 - 2, 611 - 5, 611 - 5]
    assert driver.create_event() == 701
    assert [driver.is_capturing(stream) for stream in (7, 8)] == [True, False]
    assert [driver.has_happened(event) for event in (1, 2)] == [True, False]
    with pytest.raises(CudaError, match="cuEventQuery"):
        driver.has_happened(3)
    driver.use_context(501)
    driver.destroy_stream(9)
    driver.synchronize_stream(2**40)
    driver.destroy_event(10)
    driver.clear(2**41, 2**33, 5)
    driver.copy_to_device(2**42, 100, 24, 6)
    driver.copy_to_host(200, 2**43, 25, 7)
    driver.record_event(11, 12)
    driver.wait_event(13, 14)
    driver.allow_during_captures()
    assert [line[:4] for line in written(stub, 10)] == [
        [11, 501, 0, 0],
        [12, 9, 0, 0],
        [13, 2**40, 0, 0],
        [14, 10, 0, 0],
        [15, 2**41, 2**33, 5],
        [16, 2**42, 106, 24],
        [17, 200, 2**43 + 7, 25],
        [3, 11, 12, 0],
        [4, 13, 14, 0],
        [18, 1, 0, 0],
    ]


def test_parameters_and_copies_may_change_between_calls(stub: ctypes.CDLL) -> None:
    prepared = Prepared(Driver(stub))
    parameters = prepared.launch(Loaded("one", 2, 1000), 1, 32, 111, 222)
    prepared.copy(0, 0, 64)
    for call in (1, 2):
        parameters[:] = (call, 10 * call)
        prepared.place_copy(1, 4000 * call, 5000 * call)
        prepared.enqueue([77])
        launch, copy = written(stub, 2)
        assert launch[5:7] == [call, 10 * call]
        assert copy[1:4] == [4000 * call, 5000 * call, 64]
