"""Change the code in thirty places, one at a time, and see whether the daily tests notice.

    python tests/mutants.py --seed 1 --write build/mutants.json
    python tests/mutants.py --seed 1 --list

Functions are drawn by a seeded generator, five of each group of packages, and of each function one change: a comparison
flipped, a number off by one, operands swapped, a condition negated, a statement left out. Each changed copy of the
repository runs the tests that mirror its package, those nearest to the changed file first, until one fails. A run that
crashes, or takes longer than ``--timeout`` seconds, counts as caught: the suite would not pass.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Group -> (folders of code, tests that mirror them).
GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "planner": (["planner"], ["tests/planner"]),
    "program": (
        ["dgcl/program"],
        ["tests/dgcl/program", "tests/dgcl/transport/shared_memory", "tests/dgcl/grid"],
    ),
    "transport": (
        ["dgcl/transport"],
        [
            "tests/dgcl/transport",
            "tests/dgcl/test_communicator.py",
            "tests/dgcl/test_faults.py",
            "tests/dgcl/faults",
        ],
    ),
    "kernels": (["kernels"], ["tests/kernels", "tests/dgcl/transport/shared_memory"]),
    "nn": (
        ["dgcl/nn", "dgcl/frameworks"],
        ["tests/dgcl/nn", "tests/dgcl/frameworks"],
    ),
    "importers": (["topology/importers"], ["tests/topology/importers", "tests/topology"]),
}
EACH = 5
FLIPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult}
IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "build", "site", ".mypy_cache", ".ruff_cache", ".hypothesis"
)


def functions(folders: list[str]) -> list[tuple[Path, ast.AST]]:
    """Every function of the folders, in a fixed order."""
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            found += [
                (path, n) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    return found


def changes(function: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(what, node, what takes its place) of each change that the body of a function allows."""
    for node in _body(function):
        new = copy.deepcopy(node)
        match new:
            case ast.Compare(ops=[op]) if type(op) in FLIPPED:
                new.ops = [FLIPPED[type(op)]()]
                yield "comparison flipped", node, new
            case ast.BinOp(op=op) if type(op) in OTHER:
                new.op = OTHER[type(op)]()
                yield "another operator", node, new
                if isinstance(op, ast.Sub | ast.FloorDiv | ast.Div):
                    yield "operands swapped", node, ast.BinOp(node.right, op, node.left)
            case ast.BoolOp(op=op):
                new.op = ast.And() if isinstance(op, ast.Or) else ast.Or()
                yield "and for or", node, new
            case ast.Constant(value=bool(value)):
                yield "True for False", node, ast.Constant(not value)
            case ast.Constant(value=int(value)):
                yield "off by one", node, ast.Constant(value + 1)
            case ast.UnaryOp(op=ast.Not()):
                yield "not left out", node, new.operand
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield "condition negated", node.test, ast.UnaryOp(ast.Not(), test)
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield "statement left out", node, ast.Pass()
            case ast.Continue():
                yield "break for continue", node, ast.Break()


def _body(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body that do something: no types, messages, assertions or inner functions."""
    left = list(reversed(function.body))
    while left:
        node = left.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.FunctionDef | ast.ClassDef):
            continue
        yield node
        skipped = {id(getattr(node, "annotation", None))}
        left += reversed([n for n in ast.iter_child_nodes(node) if id(n) not in skipped])


def apply(source: str, node: ast.AST, new: ast.AST) -> str:
    """The source with one node replaced; columns of the syntax tree count bytes."""
    lines = source.encode().splitlines(keepends=True)
    text = ast.unparse(ast.fix_missing_locations(new))
    text = text if isinstance(new, ast.stmt) else f"({text})"
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    return b"".join([*lines[:first], head + text.encode() + tail, *lines[last + 1 :]]).decode()


def drawn(seed: int) -> list[dict[str, str]]:
    """The mutants of a seed: group, file, function, line, what was changed, and the changed source."""
    found = []
    for group, (folders, _) in GROUPS.items():
        generator = random.Random(f"{seed} {group}")
        able = [(path, f, options) for path, f in functions(folders) if (options := list(changes(f)))]
        for path, function, options in generator.sample(able, EACH):
            what, node, new = generator.choice(options)
            source = path.read_text()
            found.append({
                "group": group, "file": str(path.relative_to(ROOT)), "function": function.name,
                "line": node.lineno, "change": what, "old": ast.unparse(node), "new": ast.unparse(new),
                "source": apply(source, node, new),
            })  # fmt: skip
            ast.parse(found[-1]["source"])
    return found


def nearest_first(group: str, file: str) -> list[str]:
    """The tests of a group; in front those named like the file, then those of its folder."""
    place = Path("tests", file)
    named = sorted((ROOT / "tests").rglob(f"test_{place.stem.lstrip('_')}.py"))
    mirrored = [place.parent] if (ROOT / place.parent).is_dir() else []
    tests = [str(p.relative_to(ROOT)) for p in named] + [str(p) for p in mirrored] + GROUPS[group][1]
    return list(dict.fromkeys(tests))


def judge(mutant: dict[str, str], timeout: float) -> dict[str, object]:
    """Run the tests on a changed copy; what became of it."""
    with tempfile.TemporaryDirectory(prefix="dgcl-mutant-") as folder:
        copied = Path(folder, "dgcl")
        shutil.copytree(ROOT, copied, symlinks=True, ignore=IGNORED)
        (copied / mutant["file"]).write_text(mutant["source"])
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        command += nearest_first(mutant["group"], mutant["file"])
        environment = {**os.environ, "PYTHONPATH": str(copied)}
        start = time.monotonic()
        with subprocess.Popen(
            command, cwd=copied, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as run:  # fmt: skip
            try:
                said, status = run.communicate(timeout=timeout)[0], run.returncode
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)
                said, status = "", -9
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if status > 2:  # below zero: a signal ended it
            raise RuntimeError(f"pytest ended with status {status}: {said[-2000:]}")
    result: dict[str, object] = {name: value for name, value in mutant.items() if name != "source"}
    by = f"signal {-status}" if status < 0 else failed[0][:200] if failed else said[-200:]
    return result | {
        "caught": status != 0,
        "by": by if status else "",
        "seconds": round(time.monotonic() - start),
    }


def main() -> int:
    """Draw, judge, write, and say how many were caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="a JSON file; mutants that it has are not run again")
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--list", action="store_true", help="only show them")
    args = parser.parse_args()
    results = json.loads(args.write.read_text()) if args.write and args.write.exists() else []
    known = {(r["file"], r["line"], r["new"]) for r in results}
    for mutant in drawn(args.seed):
        where = (
            f"{mutant['file']}:{mutant['line']} {mutant['function']}: {mutant['old']!r} -> {mutant['new']!r}"
        )
        if args.list or args.group not in (None, mutant["group"]):
            print(where)
        elif (mutant["file"], mutant["line"], mutant["new"]) not in known:
            results.append(judge(mutant, args.timeout))
            print("caught  " if results[-1]["caught"] else "SURVIVED", where, results[-1]["by"], flush=True)
            if args.write:
                args.write.parent.mkdir(parents=True, exist_ok=True)
                args.write.write_text(json.dumps(results, indent=1) + "\n")
    if results:
        print(f"{sum(bool(r['caught']) for r in results)} of {len(results)} caught")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
