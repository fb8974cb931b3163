"""What we say of the CUDA driver is what NVIDIA says: constants, structs and signatures against ``cuda-bindings``.

That package is generated from NVIDIA's headers; its enumerations import without a driver, and its sources, which the
wheel holds, cast every symbol of the driver to its declared type.

=====================  ==============================================================================================
what                   compared with
=====================  ==============================================================================================
constants              the enumeration's member; a constant in our module without a row in the table fails
structs                sizes of ``CUipcMemHandle`` and ``CUuuid``
signatures by ctypes   each argument that :class:`Driver` passes: how wide it is, what it points to
signatures, compiled   the widths that the compiled loop passes
=====================  ==============================================================================================
"""

import ast
import ctypes
import inspect
import re
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dgcl.kernels import cuda_driver, cuda_enqueue, cuda_launch
from dgcl.kernels.cuda_driver import Driver
from tests.support import fake_cuda

nvidia = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings, of the extra dev, is missing")

#: Types of the C declarations that are passed in eight bytes, in four, in one, and as a struct by value.
WIDE = {"CUcontext", "CUdeviceptr", "CUevent", "CUfunction", "CUmodule", "CUstream", "cuuint64_t", "size_t"}
NARROW = {"int", "unsigned int", "CUdevice", "CUresult", "CUdevice_attribute", "CUfunction_attribute"}
NARROW |= {"CUjit_option", "CUstreamCaptureStatus", "CUdevice_P2PAttribute"}
SIZES = {**dict.fromkeys(WIDE, 8), **dict.fromkeys(NARROW, 4), "unsigned char": 1}
SIZES |= {"CUipcMemHandle": 64, "CUuuid": 16}


def driver_constants() -> dict[str, int]:
    attribute, function, error = nvidia.CUdevice_attribute, nvidia.CUfunction_attribute, nvidia.CUresult
    option, peer = nvidia.CUjit_option, nvidia.CUdevice_P2PAttribute
    return {
        "_MULTIPROCESSORS": attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        "_MAJOR": attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        "_MINOR": attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        "_COMPUTE_MODE": attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        "_PEER_ACCESS": peer.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
        "_PEER_ATOMICS": peer.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
        "_NUM_REGISTERS": function.CU_FUNC_ATTRIBUTE_NUM_REGS,
        "_LOCAL_BYTES": function.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        "_LAZY_PEER_ACCESS": nvidia.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
        "_HOST_ALLOC_PORTABLE_MAPPED": nvidia.CU_MEMHOSTALLOC_PORTABLE | nvidia.CU_MEMHOSTALLOC_DEVICEMAP,
        "_NON_BLOCKING_STREAM": nvidia.CUstream_flags.CU_STREAM_NON_BLOCKING,
        "_EVENT_WITHOUT_TIME": nvidia.CUevent_flags.CU_EVENT_DISABLE_TIMING,
        "_NOT_FOUND": error.CUDA_ERROR_NOT_FOUND,
        "_NOT_READY": error.CUDA_ERROR_NOT_READY,
        "_ERROR_LOG": option.CU_JIT_ERROR_LOG_BUFFER,
        "_ERROR_LOG_BYTES": option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        "IPC_HANDLE_BYTES": nvidia.CU_IPC_HANDLE_SIZE,
    }


def test_constants_of_the_driver():
    ours = {name: value for name, value in vars(cuda_driver).items() if type(value) is int}
    del ours["_LOG_BYTES"], ours["_NAME_BYTES"]  # how much of a text we read
    assert ours == {name: int(value) for name, value in driver_constants().items()}


def test_error_codes():
    error = nvidia.CUresult
    assert cuda_launch._REFUSES_PTX == (
        error.CUDA_ERROR_NO_BINARY_FOR_GPU,
        error.CUDA_ERROR_INVALID_PTX,
        error.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    )
    assert fake_cuda.OUT_OF_MEMORY == error.CUDA_ERROR_OUT_OF_MEMORY
    assert fake_cuda.NOT_READY == error.CUDA_ERROR_NOT_READY
    # Named in messages of errors that no driver returned.
    for module in (cuda_driver, cuda_launch):
        for code, name in re.findall(r"(\d+), f?\"(CUDA_ERROR_\w+)", inspect.getsource(module)):
            assert int(code) == error[name]


def test_structs():
    assert ctypes.sizeof(cuda_driver._IpcHandle) == len(nvidia.CUipcMemHandle().reserved)
    assert ctypes.sizeof(cuda_driver._Uuid) == len(nvidia.CUuuid().bytes)


def declared() -> dict[str, list[str]]:
    """The argument types of every symbol of the driver."""
    found = find_spec("cuda.bindings")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0], "_bindings", "cydriver.pyx").read_text()
    casts = re.findall(r"<CUresult \(\*\)\(([^)]*)\)[^>]*> __(\w+)\)\(", source)
    assert len(casts) > 300
    return {symbol: [part.strip() for part in types.split(",")] for types, symbol in casts}


def fits(argument: Any, wanted: str) -> bool:
    """Whether an argument that ctypes passes is what a declaration wants."""
    wanted = wanted.removeprefix("const ").strip()
    if not wanted.endswith("*"):
        return not hasattr(argument, "_obj") and ctypes.sizeof(argument) == SIZES[wanted]
    pointee = wanted[:-1].strip()
    if pointee in ("void", "char"):
        is_text = isinstance(argument, ctypes.Array) and argument._type_ is ctypes.c_char
        return is_text or isinstance(argument, ctypes.c_void_p | ctypes.c_char_p)
    size = 8 if pointee.endswith("*") else SIZES[pointee]
    if isinstance(argument, ctypes.Array):
        return ctypes.sizeof(argument._type_) == size
    return hasattr(argument, "_obj") and ctypes.sizeof(argument._obj) == size


class Recorder:
    """A driver that succeeds, and keeps the arguments of every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            return 0

        return function


def test_fits_tells_wrong_arguments():
    assert fits(ctypes.c_void_p(), "CUstream")
    assert not fits(ctypes.c_int(), "CUstream")
    assert not fits(ctypes.c_size_t(), "unsigned int")
    assert fits(ctypes.byref(ctypes.c_int()), "CUdevice*")
    assert not fits(ctypes.byref(ctypes.c_void_p()), "int*")
    assert not fits(ctypes.c_void_p(), "CUdeviceptr*")
    assert not fits(ctypes.byref(ctypes.c_int()), "unsigned int")


def test_every_driver_function_is_called_as_declared():
    recorder, signatures = Recorder(), declared()
    driver = Driver(recorder)
    driver.error_name(1)
    examples = {"int": 64, "str": "text", "bytes": bytes(64)}
    for name, method in inspect.getmembers(driver, inspect.ismethod):
        if not name.startswith("_") and name not in ("call", "entry_point", "error_name"):
            parameters = inspect.signature(method).parameters.values()
            method(*(examples[parameter.annotation] for parameter in parameters))
    named = set(re.findall(r"\"(cu[A-Z]\w+)\"", inspect.getsource(cuda_driver))) | {"cuGetErrorName"}
    assert {name for name, _ in recorder.calls} == named
    for name, arguments in recorder.calls:
        assert name in signatures, f"{name} is no symbol of the driver"
        assert len(arguments) == len(signatures[name]), name
        for place, (argument, wanted) in enumerate(zip(arguments, signatures[name], strict=True)):
            assert fits(argument, wanted), f"{name}, argument {place}: {wanted}"


#: The compiled callers, and what they call.
COMPILED = {
    "_launch": ["cuLaunchKernel"],
    "_copy": ["cuMemcpyAsync"],
}


def test_compiled_calls_have_the_declared_widths():
    assert sorted(chain.from_iterable(COMPILED.values())) == sorted(cuda_enqueue.ENTRY_POINTS)
    signatures, found = declared(), {}
    for node in ast.parse(inspect.getsource(cuda_enqueue)).body:
        if isinstance(node, ast.FunctionDef) and node.name in COMPILED:
            (call,) = (each for each in ast.walk(node) if isinstance(each, ast.Call) and each.args)
            found[node.name] = [ast.literal_eval(width) for width in call.args]
    assert found.keys() == COMPILED.keys()
    for caller, functions in COMPILED.items():
        for function in functions:
            wanted = [64 if kind.endswith("*") else 8 * SIZES[kind] for kind in signatures[function]]
            assert found[caller] == wanted, function
