"""Why sources must not change while ranks start: what docs/reliability.md says about numba's cache is so.

When this fails, numba has mended it: then that section, and this file, may go.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = "from numba import njit\n\n\n@njit(cache=True)\ndef f(x):\n    return x + {}\n"
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
from numba.core import caching
load = caching.IndexDataCacheFile._load_data
def load_late(self, name):  # between its index and its data
    pathlib.Path("go").touch()
    while not pathlib.Path("done").exists():
        time.sleep(0.01)
    return load(self, name)
caching.IndexDataCacheFile._load_data = load_late
import edited
print(edited.f(1))
"""


@pytest.mark.slow
def test_a_process_can_load_the_machine_code_of_an_older_source(tmp_path: Path) -> None:
    source = tmp_path / "edited.py"
    source.write_text(SOURCE.format(1))
    old = subprocess.Popen([sys.executable, "-c", OLD], cwd=tmp_path)
    try:
        while not (tmp_path / "ready").exists():
            assert old.poll() is None
        source.write_text(
            SOURCE.format(1000)
        )  # of another length: seen even within one tick of the file's clock
        subprocess.run(
            [sys.executable, "-c", "import edited; edited.f(1)"], cwd=tmp_path, check=True, timeout=120
        )
        new = [sys.executable, "-c", NEW]
        said = subprocess.run(
            new, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120
        ).stdout
    finally:
        old.kill()
        old.wait()
    assert said == "2\n"
