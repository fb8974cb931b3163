"""What is measured covers the topology, and is executed and counted as what it says."""

from collections import Counter

import numpy as np
import pytest

from dgcl.calibration.experiment_programs import exchange_of
from dgcl.calibration.experiments import experiments, link_classes
from dgcl.calibration.run import host_structure
from dgcl.planner.cost import direction_loads, link_rows
from dgcl.topology import Device, Topology, preset

ROW = 512
MACHINES = [
    pytest.param(host_structure(2), id="host2"),
    pytest.param(host_structure(5), id="host5"),
    pytest.param(preset("pcie8"), id="pcie8"),
    pytest.param(preset("dgx1"), id="dgx1"),
    pytest.param(preset("summitx2"), id="summitx2"),
    pytest.param(preset("a100_pair"), id="pair"),
]


@pytest.mark.parametrize("topology", MACHINES)
def test_every_class_of_links_is_measured_alone(topology: Topology):
    alone = {
        (t.src, t.dst)
        for e in experiments(topology, ROW)
        if e.topic == "one link"
        for t in e.transfers
        if len(e.transfers) == 1
    }
    for pairs in link_classes(topology):
        assert alone & set(pairs)
    # From one row to megabytes: latency and bandwidth.
    sizes = {e.rows * ROW for e in experiments(topology, ROW) if e.topic == "one link"}
    assert min(sizes) == ROW
    assert max(sizes) >= 16 << 20


@pytest.mark.parametrize("topology", MACHINES)
def test_transfers_are_possible(topology: Topology):
    link_of = topology.arrays().link_of
    names = Counter(e.name for e in experiments(topology, ROW))
    assert max(names.values()) == 1
    for experiment in experiments(topology, ROW):
        keys = [(t.stage, t.src, t.dst) for t in experiment.transfers]
        assert len(set(keys)) == len(keys)
        assert all(link_of[t.src, t.dst] >= 0 and t.rows >= 1 for t in experiment.transfers)
        assert max(t.stage for t in experiment.transfers) < max(1, topology.num_devices - 1)


@pytest.mark.parametrize("topology", MACHINES)
def test_senders_share_what_they_are_said_to_share(topology: Topology):
    """The paper's Table 3: n senders over one connection put n loads on one direction of it."""
    arrays = topology.arrays()
    names = [topology.connections[c].name for c in arrays.direction_connection]
    shared = [e for e in experiments(topology, ROW) if e.shares in names]
    for experiment in shared:
        assert len({t.src for t in experiment.transfers}) == experiment.senders
        trees = exchange_of(experiment, topology, ROW)[1]
        loads = direction_loads(link_rows(trees, arrays), arrays, ROW)[0]
        most = max(loads[i] for i, name in enumerate(names) if name == experiment.shares)
        assert most == experiment.rows * ROW
    counts = {
        shares: [e.senders for e in shared if e.shares == shares] for shares in {e.shares for e in shared}
    }
    assert all(found == list(range(1, len(found) + 1)) for found in counts.values())
    bus = {"QPI": 3, "memory": min(4, topology.num_devices)}
    for kind, senders in bus.items():
        of_kind = {c.name for c in topology.connections if c.kind == kind and "store" not in c.name}
        if topology.name != "dgx1" and of_kind:
            assert max(len(counts.get(name, ())) for name in of_kind) >= senders


@pytest.mark.parametrize("topology", MACHINES[:2])
def test_programs_send_what_the_experiment_says(topology: Topology):
    for experiment in experiments(topology, ROW):
        programs, trees = exchange_of(experiment, topology, ROW)
        assert trees.rows_moved() == experiment.rows
        received = sum(program.num_halo for program in programs)
        assert received == experiment.rows
        owned = [program.num_owned for program in programs]
        sent = np.zeros(topology.num_devices, np.int64)
        for transfer in experiment.transfers:
            sent[transfer.src] += transfer.rows
        assert owned == np.maximum(np.ceil(1.5 * sent), 1).tolist()  # a third of a rank's rows stay


def test_nothing_to_measure():
    apart = Topology("apart", (Device("a"), Device("b")), ())
    with pytest.raises(ValueError, match="topology 'apart' has no links to calibrate"):
        experiments(apart, ROW)
