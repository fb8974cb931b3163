"""Compiles an experiment of calibration into the programs that ranks execute, with a vertex for each row sent.

Rows from one rank to another are one class of vertices. Which of a rank's rows belong to which class is shuffled, and
half as many again are owned as are sent: boundary vertices of a real partition lie scattered, too, and rows that lie
side by side would be copied faster, in one piece.

Called by `run`. Free to change while as many rows are sent as the experiment says, each rank owns half as many again as
it sends, and a shared connection carries what its senders send (`tests/dgcl/calibration/test_experiments.py`). Stages
must be those of the transfers, too; no test looks at them.
"""

import numpy as np

from dgcl.calibration.experiments import Experiment, Transfer
from dgcl.planner import Plan, Relation, Trees
from dgcl.program import Program, compile_programs
from dgcl.relation.classes import ItemClasses
from dgcl.topology import Topology

_OWNED_FOR_EACH = 1.5  # rows that a rank has for each that it sends: between METIS parts and random ones


def exchange_of(
    experiment: Experiment, topology: Topology, row_bytes: int, seed: int = 0
) -> tuple[list[Program], Trees]:
    """The programs of an experiment for the devices of a topology, and its trees for the cost model."""
    relation, trees = plan_of(experiment.transfers, topology.num_devices)
    plan = Plan(relation, trees, topology, {"row_bytes": row_bytes, "method": "calibration"})
    return compile_programs(plan, _items(relation, topology.num_devices, seed)), trees


def plan_of(transfers: tuple[Transfer, ...], world_size: int) -> tuple[Relation, Trees]:
    """One class for each pair of ranks, one tree of one edge for each of its transfers."""
    relation = Relation.from_classes(world_size, [(t.src, {t.dst}, t.rows) for t in transfers])
    pairs = sorted({(t.src, t.dst) for t in transfers})
    ordered = sorted(transfers, key=lambda t: (t.src, t.dst, t.stage))
    trees = Trees(
        tree_class=np.array([pairs.index((t.src, t.dst)) for t in ordered], np.int32),
        tree_count=np.array([t.rows for t in ordered], np.int64),
        edge_ptr=np.arange(len(ordered) + 1, dtype=np.int64),
        edge_src=np.array([t.src for t in ordered], np.int32),
        edge_dst=np.array([t.dst for t in ordered], np.int32),
        edge_stage=np.array([t.stage for t in ordered], np.int32),
    )
    return relation, trees


def _items(relation: Relation, world_size: int, seed: int) -> ItemClasses:
    """Items for each class of a relation, drawn; a rank without any gets one that nobody wants."""
    rng = np.random.default_rng(seed)
    sent = np.bincount(relation.source, weights=relation.count, minlength=world_size).astype(np.int64)
    owned = np.maximum(np.ceil(_OWNED_FOR_EACH * sent), 1).astype(np.int64)
    owner = np.repeat(np.arange(world_size, dtype=np.int32), owned)
    first = np.cumsum(owned) - owned
    items = []
    for rank in range(world_size):
        shuffled = rng.permutation(int(owned[rank])) + first[rank]
        ends = np.cumsum(relation.count[relation.source == rank])
        items += [np.sort(each) for each in np.split(shuffled, ends)[: len(ends)]]
    return ItemClasses(relation, np.concatenate(items), owner)
