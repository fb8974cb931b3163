"""Machine code on disk: damaged, on a machine without room for it, and while its compiler dies."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numba import types
from numba.core.registry import CPUDispatcher

from dgcl.kernels.compiled import compile_all, compiled, entry_point
from tests.support.samples import named, slow

ROOT = Path(__file__).resolve().parents[2]
CALLEE = """
from dgcl.kernels.compiled import compiled

@compiled(inline=False, entry=False)
def twice(n):
    return 2 * n

@compiled(inline=False)
def part(n):
    return twice(n)
"""
CALLER = (
    "from callee import part\nfrom dgcl.kernels.compiled import compiled\n\n"
    "@compiled\ndef total(n):\n    return part(n) + 1\n"
)
TOTAL = "from caller import total\nprint(total(3))"
LOGGED = "import logging\nlogging.basicConfig(level=logging.INFO, format='%(message)s')\n"
DYING = """
import os, signal, sys
from dgcl.kernels.kernel_cache import KernelCache
def save_overload(self, signature, result):
    print("compiled", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
KernelCache.save_overload = save_overload
from callee import part
part(3)
"""

STOPPED = """
import signal
from numba.core.compiler import CompileResult
def stop(*_):
    raise TimeoutError("the user's")
signal.signal(signal.SIGALRM, stop)
CompileResult._rebuild = lambda *_: signal.raise_signal(signal.SIGALRM)
from callee import part
try:
    part(3)
except TimeoutError as error:
    print(error)
"""

EDITED = "from dgcl.kernels.compiled import compiled\n\n\n@compiled\ndef f(x):\n    return x + {}\n"
OLD = """
import pathlib, time
import edited
pathlib.Path("ready").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
edited.f(1)
pathlib.Path("done").touch()
"""
NEW = """
import pathlib, time
from dgcl.kernels.kernel_cache import KernelCache
read = KernelCache._read
def read_late(self, path):
    pathlib.Path("go").touch()
    while not pathlib.Path("done").exists():
        time.sleep(0.01)
    return read(self, path)
KernelCache._read = read_late
import edited
print(edited.f(1))
"""

ALLOCATING = """
import numpy as np
from dgcl.kernels.compiled import compiled

@compiled(entry=False)
def inner(n):
    return np.zeros(n)[0]

@compiled
def outer(n):
    return inner(n) + np.zeros(n)[0]
"""
COUNTED = """
from numba.core import event
from allocating import outer
with event.install_recorder("numba:compile") as recorder:
    print(outer(3))
made = [(e.data["dispatcher"].py_func.__qualname__, e.data["args"]) for _, e in recorder.buffer if e.is_start]
print(len(made) > 3, len(made) - len(set(made)))
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled function that calls another by its symbol; its folder "cache" has both."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "callee.py").write_text(CALLEE)
    (folder / "caller.py").write_text(CALLER)
    assert run(TOTAL, folder, NUMBA_CACHE_DIR=str(folder / "cache"))[0] == "7"
    return folder


def start(code: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"} | environment,
    )


def run(code: str, folder: Path, **environment: str) -> tuple[str, str]:
    """What a fresh process prints, and what it says on standard error."""
    process = start(code, folder, **environment)
    said, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return said.strip(), log


def entries(folder: Path, name: str = "") -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob(f"{name}*.kernel")}


@named(
    "whose, damage",
    {
        "other": ("callee", b"no code"),
        "half-a-header": slow("caller", b'{"sha256": 1}\n'),
        "other-json": slow("callee", b"[]\n"),
        "nested": slow("caller", b"[" * 99999),
        "a-pipe": slow("callee", None),
    },
)
def test_a_damaged_entry_is_made_anew(probe: Path, whose: str, damage: bytes | None):
    whole = entries(probe / "cache", whose)
    assert whole
    for path, data in whole.items():
        if damage is None:
            path.unlink()
            os.mkfifo(path)
        else:
            path.write_bytes(damage + data[-9:])
    said, log = run(LOGGED + TOTAL, probe, NUMBA_CACHE_DIR=str(probe / "cache"))
    assert said == "7"
    assert ("is damaged" in log) is (damage is not None)
    assert {path: len(data) > 100 for path, data in entries(probe / "cache", whose).items()} == dict.fromkeys(
        whole, True
    )


def _by_another_user(cache: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives files away")
    for path in entries(cache):
        os.chown(path.parent, 12345, -1)


@named(
    "change, message",
    {
        "folder": slow(
            lambda cache: [path.parent.chmod(0o770) for path in entries(cache)],
            r"are not used: .* is writable by other users \(mode 770\)",
        ),
        "parent": (lambda cache: cache.chmod(0o777), "are not used: .*cache is writable by other users"),
        "entry": (
            lambda cache: [path.chmod(0o666) for path in entries(cache)],
            r"is writable by other users \(mode 666\)",
        ),
        "owner": slow(_by_another_user, r"are not used: .* belongs to another user \(12345\)"),
    },
)
def test_what_another_user_can_write_is_not_run(
    probe: Path, tmp_path, change: Callable[[Path], object], message: str
):
    cache = shutil.copytree(probe / "cache", tmp_path / "cache")
    change(cache)
    before = entries(cache)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    said, log = run(LOGGED + TOTAL, probe, NUMBA_CACHE_DIR=str(cache), TMPDIR=str(temporary))
    assert said == "7"
    assert re.search(message, log)
    assert "compiling kernels" in log
    if "not used" in message:
        assert entries(cache) == before
        assert entries(temporary)


def test_folders_are_made_for_their_user_alone(probe: Path, tmp_path):
    code = f"import os\nos.umask(0)\n{TOTAL}"
    assert run(code, probe, NUMBA_CACHE_DIR=str(tmp_path / "a" / "cache"))[0] == "7"
    made = list((tmp_path / "a").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o022 for path in made} == {0}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_what_a_signal_handler_raises_while_code_is_loaded_is_no_damaged_entry(probe: Path):
    """The program would go on without it."""
    assert run(STOPPED, probe, NUMBA_CACHE_DIR=str(probe / "cache"))[0] == "the user's"


def test_what_is_loaded_is_not_compiled_again(probe: Path):
    before = entries(probe / "cache")
    said, log = run(LOGGED + TOTAL, probe, NUMBA_CACHE_DIR=str(probe / "cache"))
    assert said == "7"
    assert "compiling" not in log
    assert entries(probe / "cache") == before


@pytest.mark.slow
def test_what_is_loaded_without_an_entry_for_python_is_not_called_by_it(probe: Path):
    code = "from callee import part, twice\nprint(part(3), flush=True)\ntwice(3)"
    process = start(code, probe, NUMBA_CACHE_DIR=str(probe / "cache"))
    said, log = process.communicate(timeout=120)
    assert said == "6\n"
    assert "TypeError: twice is called by compiled functions alone" in log


def test_whether_code_is_on_disk(probe: Path, tmp_path):
    code = "from dgcl.kernels.compiled import is_on_disk\nfrom caller import total\nprint(is_on_disk(total))"
    assert run(code, probe, NUMBA_CACHE_DIR=str(probe / "cache"))[0] == "True"
    assert run(code, probe, NUMBA_CACHE_DIR=str(tmp_path))[0] == "False"


@pytest.mark.slow
def test_what_numba_has_compiled_for_one_function_serves_the_next(tmp_path):
    """Also one that Python calls, after one that it does not."""
    (tmp_path / "allocating.py").write_text(ALLOCATING)
    said, _ = run(COUNTED, tmp_path, NUMBA_CACHE_DIR=str(tmp_path))
    assert said.split() == ["0.0", "True", "0"]


@pytest.mark.slow
def test_without_room_beside_the_source_or_at_home(probe: Path, tmp_path):
    probe = shutil.copytree(probe, tmp_path / "probe", ignore=shutil.ignore_patterns("cache", "__pycache__"))
    (probe / "__pycache__").touch()  # no folder, not even for root
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    places = {"HOME": "/dev/null", "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": "", "TMPDIR": str(temporary)}
    said, log = run(LOGGED + TOTAL, probe, **places)
    assert said == "7"
    kept = temporary / f"dgcl-{os.geteuid()}"
    assert f"compiled kernels are kept in {kept}" in log
    assert entries(kept)
    said, log = run(LOGGED + TOTAL, probe, **places)
    assert said == "7"
    assert "compiling" not in log


@pytest.mark.slow
def test_without_room_anywhere(probe: Path):
    nowhere = "import tempfile\ntempfile.tempdir = '/dev/null'\n"
    said, log = run(nowhere + LOGGED + TOTAL, probe, NUMBA_CACHE_DIR="/dev/null/cache")
    assert said == "7"
    assert "every process compiles them anew" in log


@pytest.mark.slow
def test_who_waits_for_a_compiler_that_dies_goes_on(probe: Path, tmp_path):
    cache = str(tmp_path)
    dying = start(DYING, probe, NUMBA_CACHE_DIR=cache)
    assert dying.stdout is not None
    assert dying.stdout.readline() == "compiled\n"
    waiting = start(LOGGED + "from callee import part\nprint(part(3))", probe, NUMBA_CACHE_DIR=cache)
    assert waiting.stderr is not None
    assert "waiting for kernels that another process compiles" in waiting.stderr.readline()
    dying.communicate()  # closes its standard input
    assert dying.returncode == -9
    assert waiting.communicate(timeout=120)[0] == "6\n"


@pytest.mark.slow
def test_sources_that_are_edited_while_processes_start(tmp_path):
    """One that began before the edit writes its machine code while one that began after it loads."""
    (tmp_path / "edited.py").write_text(EDITED.format(1))
    places = {
        "cwd": tmp_path,
        "env": os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)},
    }
    old = subprocess.Popen([sys.executable, "-c", OLD], **places)  # type: ignore[call-overload]
    try:
        while not (tmp_path / "ready").exists():
            assert old.poll() is None
        (tmp_path / "edited.py").write_text(EDITED.format(1000))
        again = [sys.executable, "-c", "import edited; edited.f(1)"]
        subprocess.run(again, check=True, timeout=120, **places)  # type: ignore[call-overload]
        new = [sys.executable, "-c", NEW]
        said = subprocess.run(new, check=True, capture_output=True, text=True, timeout=120, **places)  # type: ignore[call-overload]
    finally:
        old.kill()
        old.wait()
    assert said.stdout == "1001\n"


@compiled(inline=False)
def _add(x: int, y: int) -> int:
    return x + y


@compiled(inline=False)
def _sums(out: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    total = 0
    for i in range(out.shape[0]):
        total = _add(total, out[i])
    return _add(total, 5)


def test_a_literal_is_an_integer_like_any_other():
    assert _sums(np.arange(4)) == 11
    assert len(_add.overloads) == 1  # type: ignore[attr-defined]


@compiled(inline=False, entry=False)
def _twice(x: int) -> int:
    return 2 * x


@compiled
def _twice_and_one(x: int) -> int:
    return _twice(x) + 1


@compiled(types.int64(types.int64), entry=False)
def _half(x: int) -> int:
    return x // 2


def test_only_compiled_functions_call_one_without_an_entry_for_python():
    for _ in ("before it is compiled", "and after"):
        with pytest.raises(TypeError, match="_twice is called by compiled functions alone"):
            _twice(3)
        assert _twice_and_one(3) == 7
    copy = CPUDispatcher._rebuild(**_twice._reduce_states() | {"uuid": "as unpickled elsewhere"})  # type: ignore[attr-defined]
    assert copy(3) == 6
    compile_all(sys.modules[__name__])
    with pytest.raises(TypeError):
        _half(3)
    with pytest.raises(AssertionError):
        entry_point(_half)
