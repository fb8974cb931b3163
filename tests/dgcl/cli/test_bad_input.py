"""Bad input of any kind: status 2, one line on standard error that says what and where, nothing written."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import LINE, Run, listing
from tests.samples import named

PLAN = "plan graph.npz --topology line.json --out out.npz"
RELATION = "plan --topology line.json --out out.npz --relation"
PARTITION = "partition graph.npz --ranks 2 --out out.npy"

ARGUMENTS = [
    ("", "command is required|arguments are required"),
    ("paint", "invalid choice: 'paint'"),
    ("plann", "did you mean 'plan'"),
    (f"{PLAN} --topolgy dgx1", "unrecognized arguments: --topolgy dgx1; did you mean '--topology'"),
    ("topo show dgx_a10", "did you mean 'dgx_a100'"),
    (f"{PLAN} --method autp", "did you mean 'auto'"),
    ("bench --width abc", "--width: must be values separated by commas: each must be a whole number"),
    (f"{PARTITION} --row-bytes 64", "--row-bytes goes with --out DIR/"),
    (f"{PARTITION} --method direct", "--method goes with --out DIR/"),
    (f"{PARTITION} --partition guess", "invalid choice: 'guess' .choose from metis, random, range"),
    ("topo", "required: ACTION"),
    ("topo show", "required: T"),
    ("topo show dgx1 dgx1", "^dgcl topo show: unrecognized arguments: dgx1 .see dgcl topo show --help"),
    (f"{PLAN} --paint", "^dgcl plan: unrecognized arguments: --paint"),
    ("topo show dgx9", "dgx9.*dgx1"),
    ("topo show uniform", "uniform"),
    ("topo show uniform:0", "uniform"),
    ("topo show uniform:x", "uniform"),
    ("partition graph.npz --out out.npy", "--ranks or --topology is needed"),
    ("partition graph.npz --ranks 0 --out out.npy", "--ranks: must be a whole number of at least 1 .got '0'"),
    ("partition graph.npz --ranks two --out out.npy", "--ranks: must be a whole number .*'two'"),
    (f"{PARTITION} --seed -1", "--seed: must be a whole number of at least 0"),
    (f"{PARTITION} --seed 99999999999999999999", "--seed: must be"),
    (f"{PARTITION} --topology nowhere.json", "nowhere"),
    ("partition graph.npz --ranks 4 --out out.npy --topology line.json", "4.*3|3.*4"),
    ("plan --topology line.json", "GRAPH.*--relation.*--synthetic"),
    ("plan --synthetic facebook --topology line.json", "'facebook' .choose from reddit"),
    ("plan --synthetic reddit --scale 0 --topology line.json", "--scale: must be a number above 0"),
    ("plan --synthetic reddit --part part.npy --topology line.json", "--part goes with a graph"),
    (f"{PLAN} --scale 2", "--scale goes with --synthetic"),
    ("plan --synthetic reddit --scale 1e300 --topology line.json", "--scale: .* at most 1e.12 .got '1e300'"),
    ("plan --synthetic reddit --scale 1e11 --topology line.json", "at most 536870912 vertices"),
    (f"{PLAN} --compare auto,best", "method must be one of .*got 'best'"),
    (f"{PLAN} --explain 99", "class 99 does not exist"),
    (f"{PLAN} --part part.npy --explain 0>0", "no class of rank 0"),
    (f"{PLAN} --part line.json", "part vector line.json: is no array as np.save writes it .\\.npy.$"),
    (f"{PLAN} --plot picture.gif", "--plot must end in .png.*picture.gif"),
    (f"{PLAN} --plot nowhere/a.svg", "no folder .*nowhere"),
    (f"{PLAN} --explain all", "got 'all'"),
    (f"{PLAN} --explain 0>7", "no rank 7 among 3"),
    ("plan graph.npz", "--topology"),
    ("plan graph.npz --relation relation.npz --topology line.json", "not allowed with"),
    (f"{PLAN} --ranks 9", "9.*3|3.*9"),
    (f"{PLAN} --method best", "method must be one of .*auto.*got 'best'"),
    (f"{PLAN} --row-bytes 0", "--row-bytes: must be a whole number of at least 1"),
    (f"{PLAN} --row-bytes 1.5", "--row-bytes: must be a whole number"),
    (f"{PLAN} --time-limit 0", "--time-limit: must be a number above 0"),
    (f"{PLAN} --time-limit nan", "--time-limit: must be"),
    (f"{PLAN} --gap -0.1", "--gap: must be a number of at least 0"),
    (f"{PLAN} --seed x", "--seed"),
    (f"{PLAN} --js", "unrecognized arguments: --js"),
    (f"{PLAN} --relation-out out.npz", "--relation-out out.npz: is also --out"),
    (f"{PLAN} --method direct", "d2.*d0.*no such link"),
    ("plan graph.npz --topology line.json --out graph.npz", "--out graph.npz: is also GRAPH"),
    ("plan graph.npz --topology line.json --out line.json", "--out line.json: is also --topology"),
    ("plan graph.npz --topology line.json --out .", "--out .: is a folder"),
    ("plan graph.npz --topology line.json --out nowhere/plan.npz", "no folder .*nowhere"),
    (f"{RELATION} relation.npz --ranks 2", "--ranks 2: relation relation.npz is for 3 ranks"),
    (f"{RELATION} relation.npz --part part.npy", "--part goes with a graph"),
    ("plan --relation relation.npz --topology uniform:2", "2.*3|3.*2"),
    ("check", "required: plan.npz"),
    ("simulate", "required: plan.npz"),
    ("simulate plan.npz --order egear", "--order: invalid choice: 'egear'.*did you mean 'eager'"),
    ("simulate plan.npz --slices 0", "--slices: must be a whole number of at least 1"),
    ("simulate plan.npz --slow 1", "--slow: must be RANK:VALUE .got '1'"),
    ("simulate plan.npz --slow 1:0.5", "--slow: must be a number of at least 1 .got '0.5'"),
    ("simulate plan.npz --slow x:2", "--slow: must be a whole number of at least 0 .got 'x'"),
    ("simulate plan.npz --late 3:1", "--late: rank must be below 3"),
    ("simulate plan.npz --late 2:inf", "--late: must be a number of at least 0"),
    ("simulate plan.npz --late 2:1e300", "--late: .* at most 1e.12 .got '1e300'"),
    ("simulate plan.npz --topology uniform:2", "2.*3"),
    ("simulate plan.npz --topology cut.json", "d1.*d2|1.*2"),
    ("simulate plan.npz --trace plan.npz", "--trace plan.npz: is also plan.npz"),
    ("info please", "unrecognized arguments: please"),
]


def assert_refused(run: Run, folder: Path, argv: list[str], message: str) -> None:
    before = listing(folder)
    for extra in ([], ["--json"]):
        outcome = run(*argv, *extra)
        assert outcome.status == 2, outcome
        assert outcome.out == ""
        assert outcome.err.count("\n") == 1, outcome.err
        assert outcome.err.startswith("dgcl")
        assert "Traceback" not in outcome.err
        assert re.search(message, outcome.err), outcome.err
    assert listing(folder) == before


@pytest.mark.parametrize("line, message", ARGUMENTS, ids=[line or "nothing" for line, _ in ARGUMENTS])
def test_bad_argument(run: Run, folder: Path, plan_file: Path, line: str, message: str) -> None:
    assert_refused(run, folder, line.split(), message)


def edited(path: Path, **changes: object) -> None:
    """Rewrite an npz file with some arrays changed; None leaves one out."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {**file, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]


def edited_json(**changes: object) -> str:
    return json.dumps({key: value for key, value in {**LINE, **changes}.items() if value is not None})


def damage(path: Path, kind: str) -> None:
    """Make of a good file one of the ways in which files go wrong."""
    whole = path.read_bytes() if path.is_file() else b""
    if kind == "missing":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "link to itself":
        path.unlink()
        path.symlink_to(path.name)
    else:
        path.write_bytes(
            {
                "empty": b"",
                "noise": np.random.default_rng(0).bytes(500),
                "text": b"to be or not to be\n",
                "cut": whole[: len(whole) // 2],
                "cut short": whole[:-7],
                "flipped": whole[:40] + bytes(b ^ 0xFF for b in whole[40:80]) + whole[80:],
                "other zip": _zip(),
                "objects": _objects(),
            }[kind]
        )


def _zip() -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("indptr.npy", "no array at all")
        archive.writestr("meta.npy", "no array at all")
    return buffer.getvalue()


def _objects() -> bytes:
    """An npz whose arrays are pickles, which must never be opened."""
    from io import BytesIO

    buffer = BytesIO()
    arrays = {
        name: np.array([{}], object) for name in ("num_nodes", "indptr", "indices", "world_size", "meta")
    }
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


KINDS = [
    "missing",
    "folder",
    "link to itself",
    "empty",
    "noise",
    "text",
    "cut",
    "cut short",
    "flipped",
    "other zip",
]
KINDS += ["objects"]
READERS = {
    "graph.npz": ["partition graph.npz --ranks 2 --out out.npy", PLAN],
    "relation.npz": [f"{RELATION} relation.npz"],
    "plan.npz": ["check plan.npz", "simulate plan.npz --trace out.json"],
    "part.npy": [
        f"{PLAN} --part part.npy",
        "bench graph.npz --ranks 3 --part part.npy",
    ],
    "line.json": ["topo show line.json", PLAN, f"{PARTITION} --topology line.json"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_damaged_file(run: Run, folder: Path, plan_file: Path, name: str, kind: str) -> None:
    damage(folder / name, kind)
    for line in READERS[name]:
        assert_refused(run, folder, line.split(), re.escape(name))


GRAPHS = [
    ("no indptr", {"indptr": None}, "indptr"),
    ("index beyond the vertices", {"indices": np.array([1, 5, 2, 4, 0, 3, 6], np.int32)}, "6"),
    ("negative index", {"indices": np.array([1, 5, 2, 4, 0, 3, -1], np.int32)}, "-1"),
    ("floats", {"indices": np.array([1, 5, 2, 4, 0, 3, 2], np.float64)}, "float64"),
    ("indptr falls", {"indptr": np.array([0, 2, 1, 4, 5, 6, 7], np.int32)}, "indptr"),
    ("too many vertices", {"num_nodes": 7}, "7"),
    (
        "no vertices",
        {"num_nodes": 0, "indptr": np.array([0], np.int32), "indices": np.array([], np.int32)},
        "0",
    ),
]


@named("changes, message", {g[0]: g[1:] for g in GRAPHS})
def test_graph_that_is_none(run: Run, folder: Path, changes: dict[str, object], message: str) -> None:
    edited(folder / "graph.npz", **changes)
    assert_refused(run, folder, PARTITION.split(), f"graph graph.npz: .*{message}")


TOPOLOGIES = [
    ("no schema", edited_json(schema=None), "schema"),
    ("other schema", edited_json(schema="dgcl-plan/1"), "schema.*dgcl-plan/1"),
    ("no devices", edited_json(devices=[]), "device"),
    ("list", "[]", "object"),
    ("infinite bandwidth", edited_json().replace("4.0", "Infinity", 1), "[Ii]nf"),
    ("negative bandwidth", edited_json().replace("4.0", "-4", 1), "bandwidth.*-4"),
    ("same name twice", edited_json().replace("right", "left"), "left"),
    ("link over nothing", edited_json(links=[{"src": "d0", "dst": "d1", "route": ["up"]}]), "up"),
    ("deep", "[" * 100_000, "deep|nest|object"),
]


@named("text, message", {t[0]: t[1:] for t in TOPOLOGIES})
def test_topology_that_is_none(run: Run, folder: Path, text: str, message: str) -> None:
    (folder / "line.json").write_text(text)
    assert_refused(run, folder, ["topo", "show", "line.json"], f"topology line.json: .*({message})")


PARTS = [
    ("too short", np.zeros(5, np.int32), "6.*5|5.*6"),
    ("part beyond the devices", np.array([0, 0, 1, 1, 2, 3], np.int32), "3"),
    ("negative", np.array([0, 0, 1, 1, 2, -1], np.int32), "-1"),
    ("floats", np.zeros(6), "float64"),
    ("a table", np.zeros((6, 1), np.int32), "dimension|shape"),
    ("text", np.array(list("abcdef")), "U"),
]


@named("part, message", {p[0]: p[1:] for p in PARTS})
def test_part_vector_that_is_none(run: Run, folder: Path, part: np.ndarray, message: str) -> None:
    np.save(folder / "part.npy", part)
    assert_refused(run, folder, f"{PLAN} --part part.npy".split(), f"part.*({message})")


def test_relation_that_is_none(run: Run, folder: Path, plan_file: Path) -> None:
    edited(folder / "relation.npz", count=np.array([1, 1, 1, 1, 0], np.int64))
    assert_refused(run, folder, f"{RELATION} relation.npz".split(), r"relation relation\.npz: .*count")


def test_unreachable_pair_is_named(run: Run, folder: Path) -> None:
    (folder / "line.json").write_text(edited_json(connections=LINE["connections"][:1]))
    assert_refused(run, folder, f"{PLAN} --part part.npy".split(), "(rank|device|d).*2")
