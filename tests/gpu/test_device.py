"""The machine, its driver, and what launches cost the host."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dgcl.kernels.cuda_catalogue import catalogue, fitting_capabilities
from dgcl.kernels.cuda_launch import Prepared
from dgcl.kernels.cuda_ptx import compile_ptx
from dgcl.kernels.cuda_tables import SignalWait
from tests.gpu.device import Gpu, Tables

pytestmark = pytest.mark.gpu
Found = Callable[[dict[str, Any]], None]
PACKAGES = ("torch", "numba", "numba-cuda", "numpy", "cupy-cuda13x", "triton")
SMI = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
    "--format=csv,noheader",
)


def software() -> dict[str, Any]:
    versions: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def test_environment(found: Found) -> None:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        smi = subprocess.run(SMI, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        smi = str(error)
    found(
        software()
        | {
            "device": properties.name,
            "devices": torch.cuda.device_count(),
            "multiprocessors": properties.multi_processor_count,
            "memory, GB": round(properties.total_memory * 1e-9, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "nvidia-smi": smi,
        }
    )


def test_driver(gpu: Gpu, found: Found) -> None:
    capability = gpu.driver.capability(gpu.device.index)
    found(
        {
            "driver speaks CUDA": gpu.driver.version(),
            "capability": capability,
            "streams wait for values by themselves": gpu.driver.can_wait_in_streams(gpu.device.index),
        }
    )
    start = time.perf_counter()
    for name in ("gather_16", "sum_float32_16", "begin", "signal_wait"):
        gpu.kernels[name]
    found({"seconds to load four kernels": round(time.perf_counter() - start, 3)})
    start = time.perf_counter()
    try:
        compile_ptx(catalogue()["sum_float32_16"], fitting_capabilities(capability)[-1])
        compiles = f"{time.perf_counter() - start:.2f} s for the first"
    except Exception as error:  # whatever is wrong with this installation is what is asked here
        compiles = f"no: {type(error).__name__}: {error}"[:300]
    found({"numba compiles here": compiles})


def test_launch(gpu: Gpu, found: Found) -> None:
    """Host time of one prepared list of launches, of torch for scale, and of stream memory operations."""
    tables = Tables(gpu.device)
    parameters = SignalWait(tables.state())
    stream = [torch.cuda.current_stream().cuda_stream]
    for count in (1, 10, 20):
        prepared = Prepared(gpu.driver)
        for _ in range(count):
            prepared.launch(gpu.kernels["signal_wait"], 1, 32, *parameters)
        found({f"{count} prepared launches, us": host_microseconds(lambda p=prepared: p.enqueue(stream))})  # type: ignore[misc]
    word = torch.zeros(1, device=gpu.device)
    found({"one torch add_, us": host_microseconds(lambda: word.add_(1))})
    if gpu.driver.can_wait_in_streams(gpu.device.index):
        prepared = Prepared(gpu.driver)
        address = tables.put(np.zeros(1, np.int64))
        for _ in range(10):
            prepared.write_value(address, 0, 5)
        for _ in range(10):
            prepared.wait_value(address, 0, 5)
        found({"20 stream memory operations, us": host_microseconds(lambda: prepared.enqueue(stream))})


def host_microseconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(1e6 * statistics.median(times[20:]), 2)
