"""The verifier: hand-made faults by name, and random mutations judged by the literal oracle."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgcl.planner import Plan, PlanError, PlanOptions, Relation, Trees
from dgcl.planner.methods import make_plan
from dgcl.planner.plan_io import fingerprint, plan_arrays
from dgcl.planner.verify.check_plan import check_plan_file, verify_plan
from dgcl.planner.verify.delivery import verify_trees
from dgcl.topology import Connection, Device, Link, Topology
from tests.support.plan_cost import trees_of
from tests.support.planner_oracle import delivers
from tests.support.random_machines import instances
from tests.support.samples import named
from tests.support.small_machines import line, small_topology, switched

FULL = small_topology(4, [(a, b, 1.0) for a in range(4) for b in range(a + 1, 4)])
RELATION = Relation.from_classes(4, [(0, {1, 2}, 5), (0, {3}, 2), (1, {0}, 4)])
GOOD = [
    (0, 3, [(0, 1, 0), (1, 2, 1)]),
    (0, 2, [(0, 2, 2), (0, 1, 0)]),
    (1, 2, [(0, 1, 0), (1, 2, 1), (2, 3, 2)]),
    (2, 4, [(1, 0, 0)]),
]


def test_a_good_plan_passes():
    verify_trees(RELATION, trees_of(*GOOD), FULL)
    assert delivers(RELATION, trees_of(*GOOD), FULL)


@named(
    "tree, new, message",
    {
        "too few": (0, (0, 2, [(0, 1, 0), (1, 2, 1)]), "class 0 has 5 vertices but its trees take 4"),
        "too many": (3, (2, 5, [(1, 0, 0)]), "class 2 has 4 vertices but its trees take 5"),
        "no such class": (3, (3, 4, [(1, 0, 0)]), "tree 3 serves class 3: there are 3"),
        "negative class": (3, (-1, 4, [(1, 0, 0)]), "tree 3 serves class -1"),
        "destination left out": (0, (0, 3, [(0, 1, 0)]), "tree 0 of class 0 never delivers to rank 2"),
        "no edges": (3, (2, 4, []), "tree 3 of class 2 never delivers to rank 0"),
        "twice delivered": (0, (0, 3, [(0, 1, 0), (0, 2, 0), (1, 2, 1)]), r"rank 2 is entered twice"),
        "back to the owner": (0, (0, 3, [(0, 1, 0), (1, 2, 1), (2, 0, 2)]), "enters the owner"),
        "same stage": (0, (0, 3, [(0, 1, 1), (1, 2, 1)]), r"edge 1 \(rank 1 -> rank 2, stage 1\).*stage 1"),
        "stage falls": (0, (0, 3, [(0, 1, 1), (1, 2, 0)]), "not earlier"),
        "order of edges": (0, (0, 3, [(1, 2, 1), (0, 1, 0)]), "listed parents first"),
        "from nowhere": (0, (0, 3, [(0, 1, 0), (3, 2, 1)]), "rank 3 sends a row that it never receives"),
        "a circle": (0, (0, 3, [(0, 1, 0), (2, 3, 1), (3, 2, 2)]), "parents first"),
        "one stage too many": (0, (0, 3, [(0, 1, 0), (1, 2, 3)]), "stages must be < 3"),
        "rank out of range": (0, (0, 3, [(0, 1, 0), (1, 4, 1)]), "receiver is no rank"),
        "negative rank": (0, (0, 3, [(0, 1, 0), (-1, 2, 1)]), "sender is no rank"),
        "to itself": (0, (0, 3, [(0, 1, 0), (1, 1, 1), (1, 2, 1)]), "no such link"),
    },
)
def test_a_fault_is_found_and_named(tree: int, new: tuple[int, int, list], message: str):
    trees = trees_of(*(new if t == tree else good for t, good in enumerate(GOOD)))
    assert not delivers(RELATION, trees, FULL)
    with pytest.raises(PlanError, match=message):
        verify_trees(RELATION, trees, FULL)


def test_a_missing_link_and_a_wrong_size_are_found():
    relation = Relation.from_classes(3, [(0, {2}, 1)])
    with pytest.raises(
        PlanError, match=r"edge 0 \(rank 0 -> rank 2, stage 0\): topology 'line' has no such link"
    ):
        verify_trees(relation, trees_of((0, 1, [(0, 2, 0)])), line(3))
    with pytest.raises(PlanError, match="4 devices but the relation has 3"):
        verify_trees(relation, trees_of((0, 1, [(0, 2, 0)])), line(4))


def test_counts_that_wrap_around_are_not_taken_for_right():
    relation = Relation.from_classes(2, [(0, {1}, 4)])
    many = [(0, 1 << 61, [(0, 1, 0)])] * 8 + [(0, 4, [(0, 1, 0)])]  # 2**64 + 4
    with pytest.raises(PlanError, match=f"trees take {2**64 + 4}"):
        verify_trees(relation, trees_of(*many), line(2))


def test_faults_in_any_tree_are_found():
    for t, (c, n, edges) in enumerate(GOOD):
        bad = [*GOOD[:t], (c, n, edges[:-1]), *GOOD[t + 1 :]]
        with pytest.raises(PlanError, match=f"tree {t} of class {c} never delivers"):
            verify_trees(RELATION, trees_of(*bad), FULL)


# Random mutations of plan files


UNTOUCHED = {
    "topology",
    "stage_seconds",
    "planning_seconds",
    "version",
}  # changed in ways of their own, or unsigned


def mutate(draw: st.DrawFn, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Change one thing in place."""
    what = draw(
        st.sampled_from(
            ["value"] * 3
            + ["swap", "drop edge", "repeat edge", "move", "meta", "key", "stage seconds"]
            + ["topology"] * 2
        )
    )
    if what == "value":
        filled = sorted(name for name in arrays if arrays[name].size)
        flat = arrays[draw(st.sampled_from(filled))].reshape(-1)
        at = draw(st.integers(0, flat.size - 1))
        step = draw(st.sampled_from([-1, 1, 2]))
        flat[at] = flat[at] + np.array(step).astype(flat.dtype)  # unsigned wraps, as a broken writer would
    elif what == "swap":
        name = draw(st.sampled_from([n for n in sorted(arrays) if n != "class_dests"]))
        if arrays[name].size > 1:
            i, j = (draw(st.integers(0, arrays[name].size - 1)) for _ in range(2))
            arrays[name][[i, j]] = arrays[name][[j, i]]
    elif what in ("drop edge", "repeat edge"):
        e = draw(st.integers(0, arrays["edge_src"].size - 1))
        for name in ("edge_src", "edge_dst", "edge_stage"):
            kept = arrays[name]
            arrays[name] = np.delete(kept, e) if what == "drop edge" else np.insert(kept, e, kept[e])
        arrays["edge_ptr"][arrays["edge_ptr"] > e] += -1 if what == "drop edge" else 1
    elif what == "move":
        e = draw(st.integers(0, arrays["edge_src"].size - 1))
        arrays["edge_stage"][e] = draw(st.integers(0, 4))
    elif what == "meta":
        key = draw(st.sampled_from(sorted(set(meta) - UNTOUCHED)))
        value = meta[key]
        meta[key] = value + "x" if isinstance(value, str) else 1 if value is None else value * 2 + 1
    elif what == "key":
        del meta[draw(st.sampled_from(sorted(set(meta) - {"version"})))]
    elif what == "stage seconds":
        stages = meta["stage_seconds"]
        if draw(st.booleans()):
            stages.append(stages[-1])
        else:
            stages[draw(st.integers(0, len(stages) - 1))] *= 1.5
    else:
        mutate_topology(draw, meta["topology"])


def mutate_topology(draw: st.DrawFn, topology: dict[str, Any]) -> None:
    """Change one thing about the machine in place."""
    connection = draw(st.sampled_from(topology["connections"]))
    links = topology["links"]
    changes = {
        "bandwidth": lambda: connection.update(bandwidth=connection["bandwidth"] * 2),
        "latency": lambda: connection.update(latency=connection["latency"] + 1e-6),
        "duplex": lambda: connection.update(duplex={"full": "half", "half": "full"}[connection["duplex"]]),
        "name": lambda: topology.update(name=topology["name"] + "x"),
        "machine": lambda: topology["devices"][-1].update(machine=topology["devices"][-1]["machine"] + 1),
        "no link": lambda: links.pop(draw(st.integers(0, len(links) - 1))),
        "no device": lambda: topology["devices"].pop(),
    }
    changes[draw(st.sampled_from(sorted(changes)))]()


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Plan, dict[str, np.ndarray], dict[str, Any]]:
    """A plan with something in it, and its arrays and meta after some mutations."""
    relation, topology = draw(instances(min_devices=2).filter(lambda case: case[0].num_classes > 0))
    plan = make_plan(relation, topology, draw(st.sampled_from(["spst", "auto"])), PlanOptions(row_bytes=100))
    arrays = {name: array.copy() for name, array in plan_arrays(plan.relation, plan.trees).items()}
    meta = copy.deepcopy(plan.meta)
    for _ in range(draw(st.integers(1, 2))):
        if arrays["edge_src"].size:
            mutate(draw, arrays, meta)
    return plan, arrays, meta


def write(path: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)
    return path


@given(mutated())
def test_every_mutated_file_is_refused(
    tmp_path_factory, case: tuple[Plan, dict[str, np.ndarray], dict[str, Any]]
):
    plan, arrays, meta = case
    before = plan_arrays(plan.relation, plan.trees)
    if meta == plan.meta and all(np.array_equal(before[name], arrays[name]) for name in before):
        return  # the mutations cancelled out
    path = write(tmp_path_factory.mktemp("p") / "plan.npz", arrays, meta)
    with pytest.raises(ValueError, match=r".+plan\.npz: "):
        check_plan_file(path)


@given(mutated())
def test_trees_pass_exactly_when_the_oracle_agrees(
    case: tuple[Plan, dict[str, np.ndarray], dict[str, Any]],
):
    """Without the fingerprint's help: mutated trees for the relation as it was."""
    plan, arrays, _ = case
    try:
        trees = Trees(
            *(
                arrays[name]
                for name in ("tree_class", "tree_count", "edge_ptr", "edge_src", "edge_dst", "edge_stage")
            )
        )
    except ValueError:
        return  # refused before anything has to be proved
    good = delivers(plan.relation, trees, plan.topology)
    try:
        verify_trees(plan.relation, trees, plan.topology)
    except PlanError:
        assert not good
    else:
        assert good


# What a plan says about itself


def signed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other words in its meta, signed anew."""
    meta = {**plan.meta, **changes}
    meta["fingerprint"] = fingerprint(plan_arrays(plan.relation, plan.trees), meta)
    return Plan(plan.relation, plan.trees, plan.topology, meta)


@named(
    "changes, message",
    {
        "a stage": ({"stage_seconds": [1e-9, 2e-9]}, r"stage_seconds\[0\] is 1e-09 but"),
        "too few stages": ({"stage_seconds": []}, "has 0 stages, the edges 2"),
        "the sum": ({"predicted_seconds": 1.0}, "predicted_seconds is 1.0 but"),
        "a bound above the cost": ({"lower_bound_seconds": 1.0}, "is above what the plan itself takes"),
        "no bound": ({"lower_bound_seconds": 0.0}, "takes time on every link"),
        "the gap": ({"gap": 0.25}, "gap is 0.25 but"),
        "peer to peer": ({"direct_seconds": 1.0}, "direct_seconds is 1.0 but recomputed it is None"),
        "other rows": ({"row_bytes": 7}, "but the edges cost"),
        "other ranks": ({"world_size": 4}, "world_size is 4 but"),
    },
)
def test_false_figures_are_found_even_when_signed(changes: dict[str, Any], message: str):
    plan = make_plan(Relation.from_classes(3, [(0, {2}, 8)]), line(3), "spst", PlanOptions(row_bytes=100))
    verify_plan(signed(plan))
    with pytest.raises(PlanError, match=message):
        verify_plan(signed(plan, **changes))


def test_a_bound_that_another_plan_beats_is_found():
    """Rows go round where peer-to-peer takes half; and on to a rank that nobody needs them at."""
    full = small_topology(3, [(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)])
    options = PlanOptions(row_bytes=10**9)
    for topology, edges, direct, message in (
        (full, [(0, 1, 0), (1, 2, 1)], 8.0, "above what peer-to-peer takes, 8.0"),
        (line(4), [(0, 1, 0), (1, 2, 1), (2, 3, 2)], None, "without idle relays takes, 16.0"),
    ):
        relation = Relation.from_classes(topology.num_devices, [(0, {2}, 8)])
        plan = make_plan(relation, topology, "spst", options)
        seconds = [8.0] * len(edges)
        about = {"stage_seconds": seconds, "predicted_seconds": sum(seconds), "direct_seconds": direct}
        other = Plan(relation, trees_of((0, 8, edges)), topology, plan.meta)
        verify_plan(signed(other, **about, lower_bound_seconds=8.0, gap=sum(seconds) / 8 - 1))
        with pytest.raises(PlanError, match=message):
            verify_plan(signed(other, **about, lower_bound_seconds=sum(seconds), gap=0.0))


def test_another_topology_than_the_one_signed_is_found():
    plan = make_plan(Relation.from_classes(3, [(0, {2}, 8)]), switched(3))
    other = Plan(plan.relation, plan.trees, switched(3, 20.0), plan.meta)
    with pytest.raises(PlanError, match=r"meta.topology is not the topology"):
        verify_plan(other)


LINK = {"src": "a", "dst": "b", "route": ["c", "d"]}


@pytest.mark.parametrize(
    "links",
    [
        [],
        [LINK] * 9000,
        [LINK] * 5000 + [LINK | {"dst": 'quoted "b"'}] + [LINK] * 5000,
        [LINK, LINK | {"src": "back\\slash"}],
        [LINK | {"dst": "\u00e9"}],
        [LINK | {"dst": "\x7f"}],
        [LINK | {"route": ["line\nbreak"]}],
        [LINK | {"route": []}],
        [LINK | {"route": "cd"}],
        [LINK | {"route": [["c"]]}],
        [None, 1.5],
        {"src": "no list"},
    ],
    ids=lambda links: f"{len(links)} {str(links)[-40:]}",
)
def test_the_fingerprint_of_any_links_is_that_of_their_json(links: Any):
    """The docstring's recipe spelled out again; ordinary links are written by a faster way than json's."""
    arrays = plan_arrays(RELATION, trees_of(*GOOD))
    for meta in (
        {"b": 1.5, "topology": {"name": "t", "links": links, "about": {}}},
        {"topology": links},
        {},
    ):
        digest = hashlib.sha256()
        for name, array in arrays.items():
            digest.update(
                f"{name} {array.dtype.str} {','.join(map(str, array.shape))}\n".encode() + array.tobytes()
            )
        digest.update(json.dumps(meta, sort_keys=True, separators=(",", ":")).encode())
        assert fingerprint(arrays, meta) == digest.hexdigest()


def test_the_report_repeats_what_was_proved(tmp_path):
    relation = Relation.from_classes(3, [(0, {2}, 8)])
    plan = make_plan(relation, line(3), "spst", PlanOptions(row_bytes=100))
    plan.save(tmp_path / "plan.npz")
    report = check_plan_file(tmp_path / "plan.npz")
    assert (report.deliveries, report.bytes_needed, report.bytes_sent) == (8, 800, 1600)
    assert (report.num_stages, report.num_trees, report.num_edges) == (2, 1, 2)
    assert report.predicted_seconds == plan.predicted_seconds
    assert report.fingerprint == plan.fingerprint
    assert report.cut_bound_seconds <= report.lower_bound_seconds
    assert json.loads(json.dumps(report.to_json())) == report.to_json()


@named(
    "back, fold",
    {
        "alike both ways": (4.0, (2.0, 2.0)),
        "slower back": (1.0, (8.0, 8.0)),
        "no way back": (None, (None, None)),
    },
)
def test_the_fold_of_a_file_is_proved_and_priced(
    back: float | None, fold: tuple[float | None, float | None], tmp_path
):
    """8 GB over 4 GB/s; contributions return over a wire of their own."""
    wires = [Connection("out", "w", "a", "b", 4.0), Connection("back", "w", "a", "b", back or 1.0)]
    links = [Link("a", "b", ("out",)), Link("b", "a", ("back",))][: 2 if back else 1]
    topology = Topology("t", (Device("a"), Device("b")), tuple(wires), tuple(links))
    plan = make_plan(Relation.from_classes(2, [(0, {1}, 8)]), topology, options=PlanOptions(row_bytes=10**9))
    plan.save(tmp_path / "plan.npz")
    report = check_plan_file(tmp_path / "plan.npz")
    assert report.predicted_seconds == 2.0
    assert (report.fold_seconds, report.fold_bound_seconds) == fold


def test_a_signed_plan_of_other_trees_is_a_plan_of_its_own(tmp_path):
    """Mutated into another valid plan and honestly signed, a file passes, with another fingerprint."""
    topology: Topology = FULL
    one = make_plan(Relation.from_classes(4, [(0, {3}, 8)]), topology, "direct")
    two = make_plan(Relation.from_classes(4, [(0, {3}, 8)]), topology, "spst")
    for plan in (one, two):
        plan.save(tmp_path / "plan.npz")
        assert check_plan_file(tmp_path / "plan.npz").fingerprint == plan.fingerprint
    assert one.fingerprint != two.fingerprint
