"""The GPU under test: memory by torch, kernels by the driver."""

import numpy as np
import torch

from dgcl.kernels.cuda_driver import open_driver
from dgcl.kernels.cuda_launch import Kernels


class Gpu:
    """The current CUDA device of torch."""

    def __init__(self) -> None:
        torch.cuda.init()
        torch.cuda.synchronize()
        index = torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self.driver = open_driver()
        self.kernels = Kernels(self.driver, index)


class Tables:
    """Tables on the device; they are kept as long as this object."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[torch.Tensor] = []

    def put(self, table: np.ndarray) -> int:
        """Copy a table to the device; returns its address."""
        raw = torch.from_numpy(np.frombuffer(table.tobytes(), np.uint8).copy()).to(self._device)
        self._kept.append(raw)
        return raw.data_ptr()
