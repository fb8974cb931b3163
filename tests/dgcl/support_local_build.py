"""What :mod:`tests.dgcl.test_local_build` shares with other tests."""

import numpy as np


def problem(seed: int, num_nodes: int, num_edges: int, world_size: int):
    """Sources, heads, owners and rows: directed, with self loops, repeated edges and parts of any size."""
    random = np.random.default_rng(seed)
    sources, heads = random.integers(0, num_nodes, (2, num_edges))
    return sources, heads, random.integers(0, world_size, num_nodes), random.standard_normal((num_nodes, 3))
