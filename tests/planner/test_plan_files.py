import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dgcl.planner import Plan, PlanOptions, Relation
from dgcl.planner.methods import make_plan
from dgcl.planner.plan_io import plan_arrays
from dgcl.planner.verify.check_plan import check_plan_file, verify_plan
from dgcl.topology import Topology, preset
from tests.support.random_machines import instances
from tests.support.samples import named
from tests.support.small_machines import line

DTYPES = {
    "class_source": "int32", "class_dests": "uint64", "class_count": "int64", "tree_class": "int32",
    "tree_count": "int64", "edge_ptr": "int64", "edge_src": "int32", "edge_dst": "int32",
    "edge_stage": "int32",
}  # fmt: skip


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        Relation.from_classes(3, [(0, {2}, 8), (1, {0, 2}, 3)]), line(3), "spst", PlanOptions(row_bytes=100)
    )


@given(instances())
def test_saved_and_loaded_is_the_same(tmp_path_factory, case: tuple[Relation, Topology]):
    plan = make_plan(*case)
    path = tmp_path_factory.mktemp("p") / "plan"  # the name is taken as it is
    plan.save(path)
    again = Plan.load(path)
    before, after = plan_arrays(plan.relation, plan.trees), plan_arrays(again.relation, again.trees)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    assert again.meta == plan.meta
    assert again.topology == plan.topology
    verify_plan(again)


def test_the_file_is_read_with_numpy_and_json_alone(plan: Plan, tmp_path):
    plan.save(tmp_path / "plan.npz")
    with np.load(tmp_path / "plan.npz", allow_pickle=False) as file:
        assert {name: str(file[name].dtype) for name in file.files if name != "meta"} == DTYPES
        assert file["meta"].shape == ()
        meta = json.loads(str(file["meta"]))
    assert meta["predicted_seconds"] == sum(meta["stage_seconds"])


def broken(plan: Plan, path: Path, changes: dict[str, Any], meta_changes: dict[str, Any] | str) -> Path:
    arrays: dict[str, Any] = dict(plan_arrays(plan.relation, plan.trees))
    if isinstance(meta_changes, str):
        text = meta_changes
    else:
        meta = copy.deepcopy(plan.meta)
        meta.update({k: v for k, v in meta_changes.items() if v is not ...})
        text = json.dumps({k: v for k, v in meta.items() if meta_changes.get(k) is not ...})
    arrays.update({"meta": np.array(text), **changes})
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@named(
    "changes, message",
    {
        "array missing": ({"edge_src": None}, "array 'edge_src' is missing"),
        "array too many": ({"extra": np.array(1)}, "unknown entry 'extra.npy'"),
        "int64": ({"edge_src": np.array([0, 1])}, "'edge_src' must have dtype <i4"),
        "floats": ({"edge_src": np.array([0.5])}, "'edge_src' must have dtype <i4"),
        "two dimensions": ({"tree_count": np.array([[8]])}, r"'tree_count' must have 1 dimension"),
        "pointers too short": ({"edge_ptr": np.array([0])}, "edge_ptr must have length"),
        "pointers not from 0": ({"edge_ptr": np.array([1, 2, 4, 5])}, "edge_ptr must"),
        "pointers fall": ({"edge_ptr": np.array([0, -1, 4, 5])}, "edge_ptr must"),
        "owner among its own": ({"class_dests": np.array([[2], [6]], np.uint64)}, "own source"),
        "no such class": ({"tree_class": int32([0, 2])}, r"tree_class\[1\] is 2: must be a class"),
        "no such sender": ({"edge_src": int32([0, 1, 1, 3])}, r"edge_src\[3\] is 3: must be a rank"),
        "negative receiver": ({"edge_dst": int32([-1, 2, 0, 2])}, r"edge_dst\[0\] is -1"),
        "late stage": ({"edge_stage": int32([0, 2, 0, 0])}, r"edge_stage\[1\] is 2: must be a stage"),
        "tree for nobody": ({"tree_count": np.array([8, 0])}, r"tree_count\[1\] is 0"),
        "meta in a list": ({"meta": np.array(["{}"])}, r"'meta' must have 0 dimension"),
        "meta as bytes": ({"meta": np.array(b"{}")}, "'meta' must have dtype unicode"),
        "meta pickled": ({"meta": np.array({}, object)}, "not a valid plan file"),
    },
)
def test_broken_arrays(plan: Plan, tmp_path, changes: dict[str, Any], message: str):
    path = broken(plan, tmp_path / "plan.npz", changes, {})
    with pytest.raises(ValueError, match=message) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@named(
    "changes, message",
    {
        "empty": ("", "meta is not JSON"),
        "cut off": ("{", "meta is not JSON"),
        "a list": ("[]", "must be a JSON object"),
        "deep": ("[" * 100_000, "nested too deeply|not JSON"),
        "a key twice": ('{"schema": "dgcl-plan/1", "schema": "x"}', "the key 'schema' twice"),
        "NaN": ('{"gap": NaN}', "NaN is not a JSON number"),
        "another schema": ({"schema": "dgcl-plan/2"}, "meta.schema must be 'dgcl-plan/1'"),
        "field missing": ({"gap": ...}, "meta.gap is missing"),
        "negative gap": ({"gap": -0.5}, "meta.gap must be a number >= 0"),
        "text for a number": ({"gap": "0"}, "meta.gap must be a number"),
        "boolean for a number": ({"gap": True}, "meta.gap must be a number"),
        "stages not a list": ({"stage_seconds": 1.0}, "meta.stage_seconds must be a list"),
        "null stage": ({"stage_seconds": [None]}, r"meta.stage_seconds\[0\] must be a number"),
        "float ranks": ({"world_size": 3.0}, "meta.world_size must be an integer"),
        "fewer ranks": ({"world_size": 2}, "must be a rank|names a rank"),
        "no bytes": ({"row_bytes": 0}, "meta.row_bytes must be an integer from 1"),
        "huge seed": ({"seed": 10**400}, "meta.seed must be an integer"),
        "text for direct": ({"direct_seconds": "no"}, "meta.direct_seconds must be a number"),
        "another size": ({"topology": line(4).to_json()}, "has 4 devices for 3 ranks"),
        "no topology": ({"topology": {}}, "lists its links explicitly"),
        "method a number": ({"method": 3}, "meta.method must be a string"),
        "method a colour": ({"method": "\x1b[31mspst"}, "meta.method must be printable"),
        "no fingerprint": ({"fingerprint": None}, "meta.fingerprint must be a string"),
    },
)
def test_broken_meta(plan: Plan, tmp_path, changes: dict[str, Any] | str, message: str):
    path = broken(plan, tmp_path / "plan.npz", {}, changes)
    with pytest.raises(ValueError, match=message) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_whole_numbers_of_seconds_are_read(plan: Plan, tmp_path):
    """JSON of other writers has 0 where ours has 0.0: there is no bound."""
    path = broken(plan, tmp_path / "plan.npz", {}, {"lower_bound_seconds": 0, "gap": 0})
    assert Plan.load(path).meta["lower_bound_seconds"] == 0


def test_a_topology_with_a_fault_is_refused_with_the_place(plan: Plan, tmp_path):
    topology = copy.deepcopy(plan.meta["topology"])
    topology["connections"][0]["bandwidth"] = -1
    with pytest.raises(ValueError, match=r"not a valid plan file: .*bandwidth"):
        Plan.load(broken(plan, tmp_path / "plan.npz", {}, {"topology": topology}))


def test_what_a_broken_file_holds_is_not_in_the_message(plan: Plan, tmp_path):
    """The first entry's name is said to be 2048 bytes longer than it is, and zipfile quotes all of it."""
    path = tmp_path / "plan.npz"
    plan.save(path)
    data = bytearray(path.read_bytes())
    data[27] = 8
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not an npz archive") as caught:
        Plan.load(path)
    assert len(str(caught.value).removeprefix(str(path))) < 250


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_file_cut_off_is_refused(plan: Plan, tmp_path, keep: float):
    path = tmp_path / "plan.npz"
    plan.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    with pytest.raises(ValueError, match=r"not an npz archive|not a valid plan"):
        check_plan_file(path)


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_byte_is_refused_or_harmless(plan: Plan, tmp_path, seed: int):
    """Any single byte: refused with one clear ValueError, unless it does not bear on the content (a date)."""
    path = tmp_path / "plan.npz"
    plan.save(path)
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for at in rng.integers(0, len(data), 25).tolist():
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(flipped)
        try:
            found = check_plan_file(path).fingerprint
        except ValueError:
            continue
        assert found == plan.fingerprint


def test_text_is_deflated_and_numbers_are_not(tmp_path):
    plan = make_plan(Relation.from_classes(8, [(0, {1}, 5)]), preset("dgx1"))
    plan.save(tmp_path / "plan.npz")
    with zipfile.ZipFile(tmp_path / "plan.npz") as archive:
        packed = {info.filename: info.compress_type == zipfile.ZIP_DEFLATED for info in archive.infolist()}
    assert [name for name, deflated in packed.items() if deflated] == ["meta.npy"]
    with np.load(tmp_path / "plan.npz", allow_pickle=False) as file:
        assert json.loads(str(file["meta"])) == plan.meta
    first = (tmp_path / "plan.npz").read_bytes()
    plan.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == first
