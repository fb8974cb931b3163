"""Moves what is made of tensors to another device.

Called by `csr`, `csr_ops` and `pyg`. Free to change while layers of each framework give what they give of the whole
graph (`tests/dgcl/frameworks/`).
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
