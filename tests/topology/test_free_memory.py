import subprocess
import sys
from pathlib import Path

from dgcl.topology.free_memory import _free_bytes, available_memory
from tests.support.samples import named

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000 kB\nMemAvailable:    5000 kB\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@named(
    "files, free",
    {
        "the machine": ({"proc/meminfo": MEMINFO}, [5_120_000]),
        "nothing is said": ({}, []),
        "a group above": (
            {
                "proc/self/cgroup": "0::/jobs/mine\n",
                "groups/jobs/mine/memory.max": "max\n",
                "groups/jobs/mine/memory.current": "700\n",
                "groups/jobs/memory.max": "9000\n",
                "groups/jobs/memory.current": "4000\n",
                "groups/jobs/memory.stat": "anon 10\ninactive_file 500\n",
            },
            [5500],
        ),
        "inside a container": (
            {
                "proc/self/cgroup": "0::/hidden/by/the/container\n",
                "groups/memory.max": "100\n",
                "groups/memory.current": "150\n",
            },
            [-50],
        ),
        "version 1": (
            {
                "proc/self/cgroup": "5:cpu,memory:/a\n4:cpuset:/\n",
                "groups/memory/a/memory.limit_in_bytes": "800\n",
                "groups/memory/a/memory.usage_in_bytes": "300\n",
                "groups/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 20\n",
                "groups/memory/memory.limit_in_bytes": "1000\n",
                "groups/memory/memory.usage_in_bytes": "100\n",
            },
            [520, 900],
        ),
    },
)
def test_free_bytes(tmp_path, files: dict[str, str], free: list[int]):
    write(tmp_path, files)
    assert list(_free_bytes(tmp_path / "proc", tmp_path / "groups")) == free


def test_this_machine_has_some():
    assert 1 << 20 < available_memory() < 1 << 50


def test_the_limit_of_a_shell_counts():
    ask = "from dgcl.topology.free_memory import available_memory; print(available_memory())"
    command = f"ulimit -v 4000000; exec {sys.executable} -c '{ask}'"
    asked = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert 0 < int(asked.stdout) <= 4000000 * 1024
