"""Wheel, source archive and editable install: one package, and nothing of its parts at top level."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.support.samples import matrix

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("topology", "planner", "kernels")
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, **env: str) -> str:
    """The output of a command; a failure shows what it said."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env or None, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, symlinks kept, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("tree") / "dgcl"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, copy)
    for name in ("dgcl", "docs", "examples", "tests", *PARTS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(
        sys.executable, "-c", f"from setuptools import build_meta as b; b.build_sdist({str(out)!r})", cwd=tree
    )
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source archive, as an index would have it, not from the tree."""
    out = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
        sdist,
        cwd=out,
    )
    return next(out.glob("*.whl"))


def wanted_files() -> set[str]:
    """Every source file, under the name it is imported by."""
    own = {f"dgcl/{p.relative_to(ROOT / 'dgcl')}" for p in (ROOT / "dgcl").rglob("*") if is_source(p)}
    parts = {
        f"dgcl/{p.relative_to(ROOT)}" for part in PARTS for p in (ROOT / part).rglob("*") if is_source(p)
    }
    return own | parts


def is_source(path: Path) -> bool:
    return path.suffix in (".py", ".pyi") or path.name == "py.typed"


def test_wheel_has_every_source_file_and_one_top_level(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted_files() <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dgcl"}


def test_source_archive_has_every_source_file(sdist: Path):
    with tarfile.open(sdist) as archive:
        members = {
            name.partition("/")[2]: member for name, member in zip(archive.getnames(), archive, strict=True)
        }
    assert wanted_files() <= set(members)
    assert not [name for name, member in members.items() if member.issym()]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert {"docs/cli.md", "LICENSE", "CHANGELOG.md"} <= set(links) <= set(members)
    assert not [name for name in members if name.startswith("tests/")]  # they need the checkout


@pytest.mark.parametrize("kind", ["wheel", "sdist", matrix("editable")])
def test_installation_runs_from_anywhere(kind: str, sdist: Path, wheel: Path, tree: Path, tmp_path_factory):
    home = tmp_path_factory.mktemp(kind)
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    # Dependencies, pip and setuptools are those of this environment. Its own editable dgcl is not seen this
    # way: the hook that finds it works only from a real site-packages folder.
    site = next((home / "venv").glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text("".join(f"{p}\n" for p in sys.path if p.endswith("-packages")))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    what = {"wheel": [wheel], "sdist": [sdist], "editable": ["-e", tree]}[kind]
    flags = ("-q", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
    run(sys.executable, "-m", "pip", "--python", python, "install", *flags, *what, cwd=home, **env)

    code = (
        "import importlib.util as u, dgcl, dgcl.topology, dgcl.planner, dgcl.kernels;"
        f"print(dgcl.__file__, [name for name in {PARTS!r} if u.find_spec(name)])"
    )
    file, leaked = run(python, "-c", code, cwd=home, **env).split(maxsplit=1)
    assert Path(file).is_relative_to(tree if kind == "editable" else home / "venv")
    assert leaked.strip() == "[]"
    assert "gpu0" in run(home / "venv" / "bin" / "dgcl", "topo", "show", "dgx1", cwd=home, **env)
    if (
        kind == "sdist"
    ):  # the way of pip install dgcl, where there is no wheel: ranks, a plan, an exchange, a kernel
        assert run(python, "-c", PROGRAM, cwd=home, **env).split() == ["[[2.0,", "0.0,", "1.0]]"] * 2


PROGRAM = """
import torch, dgcl
def work():
    comm = dgcl.build_comm_info(torch.tensor([[0, 1, 2], [1, 2, 0]]), topology="uniform:2")
    rows = dgcl.dispatch_features(torch.arange(3.0)[:, None])
    return dgcl.collect(comm.local_graph("csr").sum(dgcl.graph_allgather(rows)), None).T.tolist()
for result in dgcl.launch(work, 2):
    print(result)
"""


def test_planning_without_torch(wheel: Path, tmp_path: Path):
    """The packages of the line in docs/install.md, and theirs, are enough; linked out of this environment."""
    line = re.search(
        r"^pip install (.*) && pip install --no-deps dgcl$", (ROOT / "docs/install.md").read_text(), re.M
    )
    assert line is not None
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    site = next(tmp_path.glob("venv/lib/python*/site-packages"))
    names, seen, total = line[1].split(), set[str](), 0
    while names:
        if (name := re.sub(r"[-_.]+", "-", names.pop().lower())) not in seen:
            seen.add(name)
            package = distribution(name)
            names += [re.split(r"[^\w.-]", need)[0] for need in package.requires or () if "extra" not in need]
            files = [file for file in package.files or () if file.parts[0] != ".."]
            paths = [Path(str(package.locate_file(file))) for file in files]
            total += sum(path.stat().st_size for path in paths if path.exists())
            for top in {file.parts[0] for file in files}:
                (site / top).symlink_to(str(package.locate_file(top)))
    assert "torch" not in seen
    assert total < 500e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    python, env = tmp_path / "venv" / "bin" / "python", {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    (tmp_path / "graph.txt").write_text(
        "".join(f"{u} {(u * 7 + k) % 40}\n" for u in range(40) for k in (1, 2, 5))
    )
    for call, says in (
        ("topo list", "hgx_h100"),
        ("plan graph.txt --topology uniform:4 --method spst --without device0-switch --add port:device0-switch"
         " --sensitivity --out plan.npz --html page.html", "plan written"),
        ("show plan.npz --against plan.npz", "limited by"),
        ("simulate plan.npz --scale port=2 --trace trace.json", "limited by"),
        ("check plan.npz", "accepted"),
    ):  # fmt: skip
        assert says in run(python, "-m", "dgcl", *call.split(), cwd=tmp_path, **env)


def test_what_is_not_python_is_packaged(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"dgcl/py.typed", "dgcl/__init__.pyi", "dgcl/kernels/cuda_ptx.tar.xz"} <= names
    assert "dgcl/planner/reading/page.html" in names
    assert [name for name in names if name.endswith("licenses/LICENSE")]


#: Names of imports that differ from those of the packages, and what comes with a package.
IMPORTS = {"nvidia-ml-py": ["pynvml"], "cuda-bindings": ["cuda"], "numba": ["numba", "llvmlite"]}


def test_every_import_is_of_a_declared_package():
    """An environment without our developers' tools has what the code imports, at the latest with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(line for name in ("dgl", "pyg", "viz", "kaminpar", "nvidia") for line in extras[name]),
    ]
    packages = {re.match(r"[\w-]+", line)[0] for line in wanted}  # type: ignore[index]
    known = {"dgcl", *sys.stdlib_module_names}
    known |= {name for package in packages for name in IMPORTS.get(package, [package])}
    found: dict[str, set[str]] = {}
    for path in [p for folder in ("dgcl", *PARTS) for p in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                found.setdefault(name.split(".")[0], set()).add(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in found.items() if name not in known}
