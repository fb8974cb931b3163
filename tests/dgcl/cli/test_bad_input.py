"""Bad input of any kind and verb: status 2, one line on standard error that says what and where, nothing written."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.dgcl.cli.support import LINE, Run, listing
from tests.support.samples import named

PLAN = "plan graph.npz --topology line.json --out out.npz"
RELATION = "plan --topology line.json --out out.npz --relation"
PARTITION = "partition graph.npz --ranks 2 --out out.npy"
BENCH = "bench --threads --topology uniform"
CALIBRATE = "topo calibrate --threads"

#: The last word is no value of the option before it.
NO_VALUES = [
    "partition graph.npz --ranks 0",
    "partition graph.npz --ranks two",
    f"{PARTITION} --seed -1",
    f"{PARTITION} --seed 99999999999999999999",
    f"{PLAN} --seed x",
    f"{PLAN} --row-bytes 0",
    f"{PLAN} --row-bytes 1.5",
    f"{PLAN} --time-limit 0",
    f"{PLAN} --time-limit nan",
    f"{PLAN} --gap -0.1",
    "plan --synthetic reddit --topology line.json --scale 0",
    "plan --synthetic reddit --topology line.json --scale 1e300",
    "simulate plan.npz --slow 1",
    "simulate plan.npz --slow 1:0.5",
    "simulate plan.npz --slow x:2",
    "simulate plan.npz --late 2:inf",
    "simulate plan.npz --late 2:1e300",
    f"{BENCH} --ranks 1",
    f"{BENCH} --minbytes 0",
    f"{BENCH} --minbytes K",
    f"{BENCH} --minbytes -4",
    f"{BENCH} --stepfactor 1",
    f"{BENCH} --iters 0",
    f"{BENCH} --warmup-iters -1",
    f"{BENCH} --width abc",
    f"{BENCH} --width 0",
    f"{BENCH} --timeout 0",
    f"{BENCH} --datatype float8",
    f"{CALIBRATE} --row-bytes 0",
    f"{CALIBRATE} --seconds 0",
    "topo detect --ranks 1.5",
    "topo import topo.txt --nic 0",
    "topo import topo.txt --gpu H1",
]

REFUSED = {
    "paint": "invalid choice: 'paint'",
    "plann": "did you mean 'plan'",
    "topo": "required: ACTION",
    "topo show": "required: T",
    "topo show dgx1 dgx1": "^dgcl topo show: unrecognized arguments: dgx1 .see dgcl topo show --help",
    "topo show dgx_a10": "did you mean 'dgx_a100'",
    "topo show uniform": "uniform",
    "topo import": "required: FILE",
    "topo import nowhere.txt": "nowhere.txt.*No such file",
    "topo import .": "Is a directory",
    "topo import cut.xml": "cut.xml: line 14: is not well-formed XML",
    "topo import line.json": "line.json: is JSON: a topology file needs no import",
    "topo import p2p.txt": "p2p.txt: is the output of p2pBandwidthLatencyTest",
    "topo import topo.txt --p2p topo.txt": "topo.txt: holds no table .Unidirectional P2P=Enabled Bandwidth.: give all",
    "topo import topo.txt --out topo.txt": "--out topo.txt: is also FILE",
    "topo import topo.txt --p2p p2p.txt --out p2p.txt": "--out p2p.txt: is also --p2p",
    "topo import nccl.xml --nic 10": "nic must not be given: .*no network card without a speed",
    "topo import nccl.xml nccl.xml --nic 10": "nic must not be given: no file names a network card",
    "topo import topo.txt nccl.xml": r"machine 0 .topo. tells of no network .*say the speed",
    "topo import topo.txt nccl.xml --p2p p2p.txt": "--p2p: measures one machine",
    "topo import topo.txt nccl.xml --out nccl.xml": "--out nccl.xml: is also FILE",
    "topo import topo.txt cut.xml --nic 1": "cut.xml: line 14: is not well-formed XML",
    "topo plot dgx1": "required: --out",
    "topo plot dgx1 --out t.gif": "--out must end in .png, .svg, .pdf .got 't.gif'.",
    "topo plot line.json --out line.json": "--out must end in",
    "partition graph.npz --parts=4": "'--ranks'",
    f"{CALIBRATE} --ranks 65": "--ranks must be from 2 to 64 .got 65",
    f"{CALIBRATE} --row-bytes 99999999999": "--row-bytes: at most 1048576 .got 99999999999",
    f"{CALIBRATE} --topology dgx1 --ranks 9": "8 devices, too few for 9",
    f"{CALIBRATE} --topology line.json --ranks 3 --out line.json": "--out line.json: is also --topology",
    f"{CALIBRATE} --topology apart.json": "no links to calibrate",
    "partition graph.npz": "--ranks or --topology is needed",
    "partition graph.npz --ranks 4 --topology line.json": "4.*3|3.*4",
    f"{PARTITION} --topology nowhere.json": "nowhere",
    f"{PARTITION} --row-bytes 64": "--row-bytes goes with --out DIR/",
    f"{PARTITION} --method direct": "--method goes with --out DIR/",
    f"{PARTITION} --strategy cover": "--strategy goes with --out DIR/",
    f"{PARTITION} --partition guess": "invalid choice: 'guess' .choose from auto, metis, kaminpar, str",
    "partition graph.npz --ranks 3 --out parts/ --method best": "method must be one of .*got 'best'",
    "partition graph.npz --ranks 3 --out parts/ --strategy grid:2,2,1": "2 x 2 x 1 = 4 ranks, and there are 3",
    "plan graph.npz": "--topology",
    "plan --topology line.json": "GRAPH.*--relation.*--synthetic",
    "plan graph.npz --relation relation.npz --topology line.json": "not allowed with",
    "plan --synthetic facebook --topology line.json": "'facebook' .choose from reddit",
    "plan --synthetic reddit --part part.npy --topology line.json": "--part goes with a graph",
    "plan --synthetic reddit --strategy tail --topology line.json": "--strategy goes with a graph",
    "plan --synthetic reddit --scale 1e11 --topology line.json": "at most 536870912 vertices",
    "plan graph.npz --topology line.json --out graph.npz": "--out graph.npz: is also GRAPH",
    "plan graph.npz --topology line.json --out line.json": "--out line.json: is also --topology",
    f"{PLAN} --scale 2": "--scale goes with --synthetic",
    f"{PLAN} --paint": "^dgcl plan: unrecognized arguments: --paint",
    f"{PLAN} --topolgy dgx1": "unrecognized arguments: --topolgy dgx1; did you mean '--topology'",
    f"{PLAN} --js": "unrecognized arguments: --js",
    f"{PLAN} --method autp": "did you mean 'auto'",
    f"{PLAN} --method direct": "d2.*d0.*no such link",
    f"{PLAN} --compare auto,best": "method must be one of .*got 'best'",
    f"{PLAN} --strategy trail": "'trail'.; did you mean 'tail'",
    f"{PLAN} --strategy grid:2,2,1": "2 x 2 x 1 = 4 ranks, and there are 3",
    f"{PLAN} --strategy grid:2,2": "parts,depth,slices such as",
    f"{PLAN} --fold-out f.npz": "no partial sums with --strategy halo",
    f"{PLAN} --explain 99": "class 99 does not exist",
    f"{PLAN} --explain all": "got 'all'",
    f"{PLAN} --explain 0>7": "no rank 7 among 3",
    f"{PLAN} --strategy replicas:2": "strategy must be one of halo, tail, .*got 'replicas:2'",
    f"{PLAN} --part part.npy --explain 0>0": "no class of rank 0",
    f"{PLAN} --part line.json": "part vector line.json: is no array as np.save writes it .\\.npy.",
    f"{PLAN} --plot picture.gif": "--plot must end in .png.*picture.gif",
    f"{PLAN} --plot nowhere/a.svg": "no folder .*nowhere",
    f"{PLAN} --ranks 9": "9.*3|3.*9",
    f"{PLAN} --relation-out out.npz": "--relation-out out.npz: is also --out",
    f"{RELATION} relation.npz --ranks 2": "--ranks 2: relation relation.npz is for 3 ranks",
    f"{RELATION} relation.npz --part part.npy": "--part goes with a graph",
    "plan --relation relation.npz --topology uniform:2": "2.*3|3.*2",
    "check": "required: plan.npz",
    "simulate plan.npz --order egear": "--order: invalid choice: 'egear'.*did you mean 'eager'",
    "simulate plan.npz --late 3:1": "--late: rank must be below 3",
    "simulate plan.npz --topology uniform:2": "2.*3",
    "simulate plan.npz --topology cut.json": "d1.*d2|1.*2",
    "simulate plan.npz --trace plan.npz": "--trace plan.npz: is also plan.npz",
    "info please": "unrecognized arguments: please",
    f"{BENCH} --ranks 65": "--ranks must be from 2 to 64 .got 65",
    f"{BENCH} --method warp": "method must be one of auto, .*gloo.*got 'warp'",
    f"{BENCH} --method direct,": "method must be one of",
    f"{BENCH} --method gloo": "gloo.*processes of one torch.distributed group",
    f"{BENCH} --pattern star": "--pattern: invalid choice: 'star' .choose from alltoall, allgather, ring",
    f"{BENCH} -b 2M -e 1M": "--maxbytes 1048576 is less than --minbytes 2097152",
    f"{BENCH} --width 4,8": "--width takes one number for a pattern",
    f"{BENCH} --part part.npy": "--part goes with a graph",
    f"{BENCH} graph.npz --width 4 -b 1K": "--width goes without --minbytes",
    f"{BENCH} graph.npz --part part.npy --ranks 2": "part vector part.npy",
    f"{BENCH} --relation graph.npz": "relation graph.npz",
    f"{BENCH} --relation relation.npz": "--ranks 2: relation relation.npz is for 3 ranks",
    "bench --threads --topology line.json --ranks 4": "4.*3|3.*4",
    "bench --threads --topology line.json --ranks 3 --method direct": "no such link",
    f"{BENCH} graph.npz -J graph.npz": "--json-file graph.npz: is also GRAPH",
}


def assert_refused(run: Run, folder: Path, line: str, message: str):
    before = listing(folder)
    for extra in ([], ["--json"]):
        outcome = run(*line.split(), *extra)
        assert outcome.status == 2, outcome
        assert all(line.startswith("#") for line in outcome.out.splitlines())  # what a benchmark begins with
        assert re.fullmatch(r"dgcl.*: .*\n", outcome.err), outcome.err
        assert re.search(message, outcome.err), outcome.err
    assert listing(folder) == before


@pytest.mark.sample(5, whole=True)
@pytest.mark.parametrize("line", REFUSED)
def test_refused(run: Run, folder: Path, plan_file: Path, line: str):
    apart = json.loads((folder / "cut.json").read_text())
    (folder / "apart.json").write_text(json.dumps({**apart, "links": []}))
    assert_refused(run, folder, line, REFUSED[line])


@pytest.mark.parametrize("line", NO_VALUES)
def test_no_value(run: Run, folder: Path, line: str):
    *_, option, value = line.split()
    assert_refused(run, folder, line, f"{option}:? must be .*got '({value}|{'|'.join(value.split(':'))})'")


def edited(path: Path, **changes: object):
    """Rewrite an npz file with some arrays changed; None leaves one out."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {**file, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]


def edited_json(**changes: object) -> str:
    return json.dumps({key: value for key, value in {**LINE, **changes}.items() if value is not None})


def damage(path: Path, kind: str):
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


@pytest.mark.sample(5, whole=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_damaged_file(run: Run, folder: Path, plan_file: Path, name: str, kind: str):
    damage(folder / name, kind)
    for line in READERS[name]:
        assert_refused(run, folder, line, re.escape(name))


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
def test_graph_that_is_none(run: Run, folder: Path, changes: dict[str, object], message: str):
    edited(folder / "graph.npz", **changes)
    assert_refused(run, folder, PARTITION, f"graph graph.npz: .*{message}")


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
def test_topology_that_is_none(run: Run, folder: Path, text: str, message: str):
    (folder / "line.json").write_text(text)
    assert_refused(run, folder, "topo show line.json", f"topology line.json: .*({message})")


PARTS = [
    ("too short", np.zeros(5, np.int32), "6.*5|5.*6"),
    ("part beyond the devices", np.array([0, 0, 1, 1, 2, 3], np.int32), "3"),
    ("negative", np.array([0, 0, 1, 1, 2, -1], np.int32), "-1"),
    ("floats", np.zeros(6), "float64"),
    ("a table", np.zeros((6, 1), np.int32), "dimension|shape"),
    ("text", np.array(list("abcdef")), "U"),
]


@named("part, message", {p[0]: p[1:] for p in PARTS})
def test_part_vector_that_is_none(run: Run, folder: Path, part: np.ndarray, message: str):
    np.save(folder / "part.npy", part)
    assert_refused(run, folder, f"{PLAN} --part part.npy", f"part.*({message})")


def test_relation_that_is_none(run: Run, folder: Path, plan_file: Path):
    edited(folder / "relation.npz", count=np.array([1, 1, 1, 1, 0], np.int64))
    assert_refused(run, folder, f"{RELATION} relation.npz", r"relation relation\.npz: .*count")


def test_unreachable_pair_is_named(run: Run, folder: Path):
    (folder / "line.json").write_text(edited_json(connections=LINE["connections"][:1]))
    assert_refused(run, folder, f"{PLAN} --part part.npy", "(rank|device|d).*2")
