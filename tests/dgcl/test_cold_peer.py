"""No rank fails because a peer compiles: one of two ranks has no machine code on disk, and deadlines are short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_port
from tests.support.samples import matrix

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import numpy as np, torch, dgcl
dgcl.init()
comm = dgcl.build_comm_info(np.random.default_rng(0).integers(0, 60, (2, 300)), "uniform", timeout=10)
rows = comm.expand(torch.ones(comm.num_owned, 1))
assert bool((rows == 1).all())
comm.fold(rows)
comm.close()
print("done")
"""


@pytest.mark.slow
@pytest.mark.xdist_group("alone")
@pytest.mark.parametrize("cold", [matrix(0), 1])
def test_a_rank_that_compiles_costs_its_peer_no_deadline(tmp_path, cold: int):
    common = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=common
            | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            | ({"NUMBA_CACHE_DIR": str(tmp_path)} if rank == cold else {}),
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=400)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [text.strip().splitlines()[-1] for text in said] == ["done", "done"], said
