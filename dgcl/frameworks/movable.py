"""A base class of frozen dataclasses of tensors, whose ``to(device)`` gives a copy on another device.

Fields that have a ``to`` are moved, other movable dataclasses among them; all else is kept.
Called by `csr`, `csr_ops` and `pyg`. Free to change while sums on a moved CSR graph are those on the CPU
(`tests/dgcl/pretended/test_pretended.py`), and ``device="cpu"`` changes no tensor
(`tests/dgcl/frameworks/test_pyg.py`).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch


@dataclass(frozen=True, eq=False)
class Movable:
    """What has tensors as fields, or other movable ones."""

    def to(self, device: torch.device | str) -> Self:
        """The same on ``device``."""
        moved = {name: value.to(device) for name, value in vars(self).items() if hasattr(value, "to")}
        return replace(self, **moved)
