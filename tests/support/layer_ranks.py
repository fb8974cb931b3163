"""A few vertices on a few ranks, for what needs a communicator but no edges to speak of."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dgcl

NUM_NODES = 23
CYCLE = np.stack([np.arange(NUM_NODES), (np.arange(NUM_NODES) + 1) % NUM_NODES])
WORLD_SIZES = [1, 2, 3, 8]


def part(world_size: int) -> np.ndarray:
    """Unequal parts: the first half of the vertices is on rank 0."""
    owners = np.arange(NUM_NODES) % world_size
    owners[: NUM_NODES // 2] = 0
    return owners


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any, ranks: str = "threads") -> list[Any]:
    """The results of ``function(comm, *args)`` on each rank of a communicator over the cycle."""
    return dgcl.launch(_run, world_size, function, world_size, args, ranks=ranks)


def _run(function: Callable[..., Any], world_size: int, args: tuple[Any, ...]) -> Any:
    return function(dgcl.build_comm_info(CYCLE, "uniform", part=part(world_size)), *args)


def rows(*trailing: int, seed: int = 0) -> torch.Tensor:
    """Random float64 rows of all vertices, the same whoever asks."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_NODES, *trailing, dtype=torch.float64, generator=generator)


def drawn(model: Any, seed: int = 0) -> Any:
    """A model with random parameters, the same whoever else draws."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model
