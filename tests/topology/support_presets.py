"""What :mod:`tests.topology.test_presets` shares with other tests."""

from dgcl.topology import Topology


def bottleneck(topology: Topology, src: int, dst: int) -> float:
    arrays = topology.arrays()
    link = arrays.link_of[src, dst]
    steps = arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]
    return float(arrays.bandwidth[steps].min())
