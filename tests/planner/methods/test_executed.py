"""`auto` beside the paper's greedy and peer-to-peer on imported machines, as executed."""

import pytest

from dgcl.graph.graph_files import read_graph
from dgcl.partition.partitioners import partition_graph
from dgcl.planner.methods import make_plan
from dgcl.planner.simulator.executed import executed_seconds
from dgcl.relation.classes import halo_classes
from dgcl.topology.importers import import_machines, import_topology
from tests.support.graphs import real_graph
from tests.support.importer_cases import SHARED
from tests.support.samples import slow

ALONE = "dgx1v_8xV100_4nic|traverse_ac922|node_8gpu_pix|node_8xRTX3090|azure_ncv4|amd_topo_8p6l|node_16xL20"
IN_PAIRS = "node_8xV100_1nic|dgx1v_8xV100_4nic|traverse_ac922|asus_esc8000a|amd_topo_8p6l|oci_8xH100_dump"


@pytest.mark.sample(13)
@pytest.mark.parametrize("name", ["pubmed", "citeseer", "cora"])
@pytest.mark.parametrize("machine", [*ALONE.split("|"), *(slow(f"2 {name}") for name in IN_PAIRS.split("|"))])
def test_auto_is_at_most_a_percent_slower(machine: str, name: str):
    graph = read_graph(real_graph(name)).graph
    path = next(SHARED.glob(f"[nt]*/{machine.removeprefix('2 ')}*"))
    if machine.startswith("2 "):
        imported = import_machines([path, path], nic=12.5 if path.suffix == ".txt" else None)
    else:
        imported = import_topology(path)
    topology, world = imported.topology, imported.topology.num_devices
    relation = halo_classes(graph, partition_graph(graph, world, topology=topology), world).relation
    auto, *others = (
        executed_seconds(make_plan(relation, topology, method)) for method in ("auto", "spst", "direct")
    )
    assert auto <= 1.01 * min(others)
