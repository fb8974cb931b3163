"""The house stands as drawn: who may import whom, what may not be loaded, and habits.

Rules are functions from a parsed file to the lines that break them; each is first shown a file that does.
"""

import ast
import functools
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.source_files import ROOT, sources

FOLDERS = ("topology", "planner", "kernels", "dgcl")
# What of ours each folder may import, besides itself.
ARROWS = {"topology": (), "planner": ("topology",), "kernels": (), "dgcl": ("topology", "planner", "kernels")}
# The planner compiles, too, and machine code has one cache with one kind of stamp: this file of each folder is the
# door.
DOOR = ("planner/planner_compiled.py", "dgcl.kernels.compiled")
LINKED = ("topology", "planner", "kernels")
#: What takes long to import; layers import the first three.
HEAVY = (
    "torch",
    "numba",
    "scipy",
    "highspy",
    "torch._dynamo",
    "dgl",
    "torch_geometric",
    "networkx",
    "matplotlib",
    "pymetis",
    "kaminpar",
)
MANY_LINES = 400
USUAL_LINES = 250


def offenders(wrong: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is wrong with each of our files, by its name, for those where something is."""
    found = {str(path.relative_to(ROOT)): wrong(path) for folder in FOLDERS for path in sources(folder)}
    assert len(found) > 100
    return {name: lines for name, lines in found.items() if lines}


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each import statement's line and dotted names, wherever it stands (also in functions)."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def folder_of(module: str) -> str | None:
    """Which of our folders a dotted name belongs to; None for other people's packages."""
    parts = module.split(".")
    if parts[0] != "dgcl":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LINKED else "dgcl"


def wrong_arrows(tree: ast.Module, folder: str) -> list[str]:
    allowed = {None, folder, *ARROWS[folder]}
    # `from dgcl import topology` names dgcl itself first, which every import of ours runs through anyway.
    return [
        f"{line}: {name}"
        for line, name in imported(tree)
        if name != "dgcl" and folder_of(name) not in allowed
    ]


def bare_names(tree: ast.Module) -> list[str]:
    """Imports of a folder by its top-level name, or relative ones, which hide where they lead."""
    return [f"{line}: {name}" for line, name in imported(tree) if name.split(".")[0] in ("", *LINKED)]


def torch_imports(tree: ast.Module) -> list[str]:
    return [f"{line}: {name}" for line, name in imported(tree) if name.split(".")[0] == "torch"]


def bare_excepts(tree: ast.Module) -> list[str]:
    return [str(n.lineno) for n in nodes(tree) if isinstance(n, ast.ExceptHandler) and n.type is None]


def globals_used(tree: ast.Module) -> list[str]:
    return [f"{n.lineno}: {n.names}" for n in nodes(tree) if isinstance(n, ast.Global)]


@functools.cache
def calls(tree: ast.Module) -> tuple[tuple[ast.Call, str], ...]:
    return tuple((node, ast.unparse(node.func)) for node in nodes(tree) if isinstance(node, ast.Call))


def unpicklings(tree: ast.Module) -> list[str]:
    """Anything that runs code found in a file: pickle.load, and numpy or torch told to do it."""
    found = [
        f"{call.lineno}: {name}"
        for call, name in calls(tree)
        if name.split(".")[-1] in ("Unpickler", "load") and "pickle" in name.lower()
    ]
    for call, name in calls(tree):
        for keyword in call.keywords:
            risky = {"allow_pickle": True, "weights_only": False}.get(keyword.arg or "")
            if risky is not None and isinstance(keyword.value, ast.Constant) and keyword.value.value is risky:
                found.append(f"{call.lineno}: {name}({keyword.arg}={risky})")
    return found


def prints(tree: ast.Module) -> list[str]:
    return [str(call.lineno) for call, name in calls(tree) if name == "print"]


def shells(tree: ast.Module) -> list[str]:
    found = [str(call.lineno) for call, name in calls(tree) if name in ("os.system", "os.popen")]
    return found + [str(c.lineno) for c, _ in calls(tree) for k in c.keywords if k.arg == "shell"]


def environment_writes(tree: ast.Module) -> list[str]:
    found = []
    for node in nodes(tree):
        targets = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        found += [str(t.lineno) for t in targets if ast.unparse(t).startswith(("os.environ", "environ["))]
    changers = ("update", "setdefault", "pop", "clear", "popitem")
    found += [
        str(call.lineno)
        for call, name in calls(tree)
        if name in ("os.putenv", "os.unsetenv")
        or name.rpartition(".")[::2] in {("os.environ", c) for c in changers}
    ]
    return found


HABITS = {
    "no bare top-level names": bare_names,
    "no bare except": bare_excepts,
    "no global statement": globals_used,
    "no unpickling": unpicklings,
    "no shell": shells,
    "no change of the environment": environment_writes,
}

BAD = [
    ("no bare top-level names", "import planner.plan"),
    ("no bare top-level names", "from topology import Topology"),
    ("no bare top-level names", "from . import plan"),
    ("no bare except", "try:\n    pass\nexcept:\n    pass"),
    ("no global statement", "def f():\n    global x"),
    ("no unpickling", "pickle.load(f)"),
    ("no unpickling", "np.load(f, allow_pickle=True)"),
    ("no unpickling", "torch.load(f, weights_only=False)"),
    ("no shell", "subprocess.run(c, shell=True)"),
    ("no shell", "os.system(c)"),
    ("no change of the environment", "os.environ['A'] = 'b'"),
    ("no change of the environment", "os.environ.setdefault('A', 'b')"),
    ("no change of the environment", "del os.environ['A']"),
]


@pytest.mark.parametrize("habit, code", BAD)
def test_rule_sees_an_offence(habit: str, code: str):
    assert HABITS[habit](ast.parse(code))


@pytest.mark.parametrize(
    "folder, code, offends",
    [
        ("topology", "from dgcl.planner import Plan", True),
        ("topology", "from dgcl import planner", True),
        ("topology", "import dgcl.errors", True),
        ("topology", "from dgcl.topology.model import Topology", False),
        ("planner", "def f():\n    from dgcl.kernels import rows", True),
        ("planner", "from dgcl.topology import Topology", False),
        ("kernels", "from dgcl.topology import Topology", True),
        ("dgcl", "from dgcl.planner import Plan\nfrom dgcl.kernels import rows\nimport numpy", False),
    ],
)
def test_arrow_rule_sees_an_offence(folder: str, code: str, offends: bool):
    assert bool(wrong_arrows(ast.parse(code), folder)) == offends


def test_imports_follow_the_arrows():
    def wrong(path: Path) -> list[str]:
        tree, folder = parse(path), path.relative_to(ROOT).parts[0]
        found = wrong_arrows(tree, folder)
        if path.relative_to(ROOT).as_posix() == DOOR[0]:
            found = [line for line in found if not line.partition(": ")[2].startswith(DOOR[1])]
        return found + (torch_imports(tree) if folder in ("topology", "planner") else [])

    assert not offenders(wrong)


def test_first_screens():
    """A module's docstring has at most ten lines; the callers and tests that it names are there."""

    def wrong(path: Path) -> list[str]:
        text = ast.get_docstring(parse(path)) or ""
        _, called, callers = text.partition("Called by ")
        names = re.findall(r"(?<![`:])`([\w/]+(?:\.py)?)`(?!`)", callers)
        places = [(ROOT if "/" in name else path.parent) / name for name in names]
        lost = [str(each) for each in places if not (each.exists() or each.with_suffix(".py").exists())]
        return [*lost, *["more than ten lines"][: len(text.splitlines()) > 10 and bool(called)]]

    assert not offenders(wrong)


@pytest.mark.parametrize("habit", HABITS)
def test_habits(habit: str):
    assert not offenders(lambda path: HABITS[habit](parse(path)))


def test_only_the_command_prints():
    assert not offenders(lambda path: [] if ROOT / "dgcl" / "cli" in path.parents else prints(parse(path)))


def test_simulator_shares_no_cost_code():
    """Its word about the cost model is worth something only if it does not lean on it."""
    simulator = {path.stem: path for path in sources("planner") if path.parent.name == "simulator"}
    assert "event_simulator" in simulator
    lean_on = {
        f"dgcl.planner.{name}"
        for name in ("array_types", "planner_compiled", "planning_errors", "plan", "relation", "trees")
    }
    lean_on |= {f"dgcl.planner.simulator.{name}" for name in simulator}
    for path in simulator.values():
        modules = {node.module for node in nodes(parse(path)) if isinstance(node, ast.ImportFrom)}
        modules |= {
            name.name for node in nodes(parse(path)) if isinstance(node, ast.Import) for name in node.names
        }
        ours = {module for module in modules if module and folder_of(module) == "planner"}
        assert ours <= lean_on, path.name


def test_files_fit_in_the_head():
    """A note, not a limit: what belongs together stays together. Most files are short."""
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for f in FOLDERS for p in sources(f)}
    print(f"longer than {MANY_LINES} lines:", {name: n for name, n in lines.items() if n > MANY_LINES})
    assert sum(count > USUAL_LINES for count in lines.values()) <= 0.2 * len(lines)


@pytest.mark.parametrize("name", LINKED)
def test_symlink_is_relative_and_committed(name: str):
    link = ROOT / "dgcl" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    if (ROOT / ".git").exists():
        entry = subprocess.run(
            ["git", "ls-files", "-s", f"dgcl/{name}"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert entry.stdout.startswith("120000 "), "not committed as a symlink"


def test_no_public_verb_has_the_name_of_a_module():
    import dgcl

    modules = {module.name for module in pkgutil.iter_modules(dgcl.__path__)}
    assert {"topology", "planner", "cli"} <= modules
    # A function of a module's name would be overwritten when that module is imported. Subpackages are public
    # under their own names.
    public = {name: getattr(dgcl, name) for name in dgcl.__all__}
    assert {"init", "graph_allgather"} <= set(public)
    assert not {
        name for name, value in public.items() if name in modules and not isinstance(value, ModuleType)
    }


@pytest.mark.parametrize(
    "module", ["errors", "topology", "planner.methods", "graph", "partition", "cli", "advisor.choice", "nn"]
)
def test_import_is_light(module: str):
    heavy = {"nn": HEAVY[3:], "advisor.choice": HEAVY[:1]}.get(module, HEAVY)
    code = f"import sys, dgcl.{module}; print(*[m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


#: The folders and modules of dgcl/ in the order of the data's way; what stands in one line may import each other.
ORDER = (
    ("__init__", "errors"),
    ("graph",),
    ("partition",),
    ("relation",),
    ("program",),
    ("ranks",),
    ("placement", "grid"),
    ("prepare",),
    ("transport",),
    ("aggregation",),
    ("autograd",),
    ("frameworks",),
    ("communicator",),
    ("nn", "rows"),
    ("offload",),
    ("advisor",),
    ("options", "build", "local_build"),
    ("api", "nn.shared_nodes"),  # verbs: they build communicators
    ("transport.cuda.trial_process",),  # a process that builds communicators
    ("distributed",),
    ("bench",),
    ("calibration",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "dgcl" else ("dgcl", *parts)
    return ".".join(parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """For each of our files those that it imports, wherever the import stands."""
    files = {module_name(path): path for folder in FOLDERS for path in sources(folder)}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = set()
        for node in nodes(parse(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in files else node.module for name in names}
        graph[module] = (found & files.keys()) - {module}
    return graph


def place_of(module: str) -> str:
    """The folder in which a module of dgcl/ stands: its folder's, or one of its own."""
    name = module.partition(".")[2]
    return name if name in LEVEL else name.split(".")[0] or "__init__"


def wrong_way(graph: dict[str, set[str]]) -> list[str]:
    """Imports of a folder of dgcl/ that comes later on the data's way."""
    found = []
    for module, imports in graph.items():
        for other in imports:
            here, there = (place_of(name) for name in (module, other))
            if here.split(".")[0] != there.split(".")[0] and LEVEL.get(there, 0) > LEVEL.get(
                here, len(ORDER)
            ):
                found.append(f"{module} -> {other}")
    return sorted(found)


def test_circles_and_wrong_ways_are_seen():
    import networkx

    circle = networkx.DiGraph({"dgcl.a": {"dgcl.b"}, "dgcl.b": {"dgcl.a"}})
    assert not networkx.is_directed_acyclic_graph(circle)
    assert wrong_way({"dgcl.graph.csr": {"dgcl.bench.lanes"}}) == ["dgcl.graph.csr -> dgcl.bench.lanes"]
    assert not wrong_way({"dgcl.bench.lanes": {"dgcl.graph.csr", "dgcl.kernels.rows"}})


def test_no_file_is_on_a_circle_of_imports():
    import networkx

    components = networkx.strongly_connected_components(networkx.DiGraph(import_graph()))
    assert not [sorted(files) for files in components if len(files) > 1]


def test_folders_follow_the_way_of_the_data():
    graph = import_graph()
    assert {name.split(".")[1] for name in graph if name.count(".") > 0} <= {*LEVEL, *LINKED}, (
        "name it in ORDER"
    )
    assert not wrong_way(graph)


def test_the_root_is_small():
    assert len(list((ROOT / "dgcl").glob("*.py"))) <= 8


def test_no_test_file_imports_another():
    found = {}
    for path in (ROOT / "tests").rglob("*.py"):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names = {name for _, name in imported(parse(path)) if name.startswith("tests.") and ".test_" in name}
        found[own] = sorted(name for name in names if not f"{name}.".startswith(f"{own}."))
    assert len(found) > 100
    assert not {own: names for own, names in found.items() if names}, "what both need goes to a helper"


def test_helpers_of_several_folders_are_in_support():
    users: dict[Path, set[Path]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for _, name in imported(parse(path)):
            helper = (ROOT / name.replace(".", "/")).with_suffix(".py")
            if name.startswith("tests.") and helper.is_file():
                users.setdefault(helper, set()).add(path.parent)
    assert len(users) > 20
    support = ROOT / "tests" / "support"
    elsewhere = {helper: folders for helper, folders in users.items() if helper.parent != support}
    assert not [helper for helper, folders in elsewhere.items() if folders != {helper.parent}], (
        f"several folders use it: it goes to {support}"
    )
    table = re.findall(r"^\| `(\w+\.py)` \|", (support / "README.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(path.name for path in support.glob("*.py")), (
        "its table has a line for each"
    )
