"""Importing the topology package is cheap: it is needed on login nodes and in command lines."""

import subprocess
import sys


def test_importing_loads_nothing_heavy():
    heavy = "{'torch', 'scipy', 'numba', 'matplotlib', 'networkx', 'dgl', 'pymetis'}"
    code = f"import sys, dgcl.topology; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
