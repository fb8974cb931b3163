"""Links staged in host memory share the memory of a processor."""

import pytest

from dgcl.topology import preset
from dgcl.topology.host_memory import stage_in_host_memory
from tests.support.importer_cases import routes


def test_what_passes_a_processor_is_staged_at_the_senders():
    staged = stage_in_host_memory(preset("pcie8"), 60.0)
    found, before = routes(staged), routes(preset("pcie8"))
    assert found["gpu5", "gpu0"] == (
        "gpu5-plx2",
        "plx2-cpu1",
        "cpu1.store",
        "cpu1.load",
        "cpu0-cpu1",
        "plx0-cpu0",
        "gpu0-plx0",
    )
    assert found["gpu0", "gpu1"] == before["gpu0", "gpu1"]  # below one PCIe switch
    memory = {c.name: (c.kind, c.bandwidth) for c in staged.connections if c.kind == "DRAM"}
    assert memory == {f"cpu{s}.{way}": ("DRAM", 30.0) for s in (0, 1) for way in ("store", "load")}


def test_senders_of_one_socket_share_its_memory():
    """Four senders over 12 GB/s each, and memory that stores 20: each gets 5."""
    topology = stage_in_host_memory(preset("pcie8"), 40.0)
    arrays = topology.arrays()
    store = next(
        c for c in range(arrays.num_directions) if arrays.direction_names[c].startswith("cpu0.store:cpu0>")
    )
    users = [
        (int(arrays.link_src[link]), int(arrays.link_dst[link]))
        for link in range(arrays.num_links)
        if store in arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]
    ]
    assert {src for src, _ in users} == {0, 1, 2, 3}
    assert arrays.bandwidth[store] == 20.0


def test_a_machine_without_processors():
    with pytest.raises(ValueError, match="'dgx_a100' has no endpoint called cpu<number>"):
        stage_in_host_memory(preset("dgx_a100"), 60.0)
