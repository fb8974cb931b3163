"""What launchers say of a rank, by environment variables: a table of theirs, and what comes of them."""

import os

import pytest

import dgcl
from dgcl.ranks.environment import first_host, launched, local_rank
from tests.dgcl.ranks.support_set_up_faults import run_ranks
from tests.support.samples import named

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "SLURM_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "MPI_",
    "DGCL_LAUNCHER",
)
STEP = "SLURM_JOB_ID=7654321 SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=5"
NODES = "SLURM_STEP_NODELIST=node[09-11,15],gpu5"
OMPI = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0"
HERE = "MASTER_ADDR=head MASTER_PORT=1234"
PMI = "PMI_SIZE=3 PMI_RANK=2 MPI_LOCALRANKID=1"


def set_variables(text: str, monkeypatch: pytest.MonkeyPatch):
    for name in list(os.environ):
        if name.startswith(NAMES):
            monkeypatch.delenv(name)
    for each in text.split():
        monkeypatch.setenv(*each.split("=", 1))


@named(
    "variables, expected",
    {
        "nothing": ("", None),
        "torchrun": (f"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 {HERE} {STEP}", ("torchrun", 1, 2, 1, None, "head", 1234)),
        "a step": (f"{STEP} {NODES}", ("Slurm", 3, 5, 1, None, "node09", 19323)),
        "a step, with an address": (f"{STEP} {HERE}", ("Slurm", 3, 5, 1, None, "head", 1234)),
        "a step with PMI": (f"{STEP} {NODES} PMI_SIZE=5 PMI_RANK=3", ("Slurm", 3, 5, 1, None, "node09", 19323)),
        "an allocation": ("SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_NODELIST=a", None),
        "a step of one": ("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", None),
        "Open MPI": (f"{OMPI} {HERE}", ("Open MPI", 2, 4, 0, None, "head", 1234)),
        "on one machine": (
            f"{OMPI} OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=prterun-x1-4321@1",
            ("Open MPI", 2, 4, 0, 4, "127.0.0.1", 18211),
        ),
        "in a job of Slurm's, whose helpers are a step": (
            f"{OMPI} {STEP} SLURM_STEP_NODELIST=b SLURM_JOB_NODELIST=a,b",
            ("Open MPI", 2, 4, 0, None, "a", 19321),
        ),
        "PMI": (f"{PMI} MASTER_ADDR=head", ("PMI", 2, 3, 1, None, "head", 29500)),
        "PMI in a step of its helpers": (
            f"{PMI} SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 {HERE}", ("PMI", 2, 3, 1, None, "head", 1234)
        ),
        "on purpose": (f"{PMI} DGCL_LAUNCHER=none", None),
    },
)  # fmt: skip
def test_variables(variables: str, expected: tuple[object, ...] | None, monkeypatch: pytest.MonkeyPatch):
    set_variables(variables, monkeypatch)
    found = launched()
    if expected is None or found is None:
        assert found is expected
    else:
        place = found.launcher, found.rank, found.size, found.local_rank, found.local_size
        assert (*place, *found.address()) == expected
        assert local_rank() == found.local_rank
    assert launched(None) is None


@named(
    "variables, words",
    {
        "a rank beyond the size": (
            f"RANK=2 WORLD_SIZE=2 {HERE}",
            "RANK must be .* below WORLD_SIZE .*got RANK=2",
        ),
        "a rank that is no number": (f"RANK=-1 WORLD_SIZE=2 {HERE}", "got RANK=-1"),
        "no size": (f"RANK=0 {HERE}", r"must be set together.* \(got '0' and ''"),
        "no rank": (f"WORLD_SIZE=2 {HERE}", r"must be set together.* \(got '' and '2'"),
        "Slurm's beyond": ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=2", "SLURM_PROCID must be"),
        "no address": (PMI, r"-genv MASTER_ADDR .* DGCL_LAUNCHER=none"),
        "another launcher": ("DGCL_LAUNCHER=mpi", "DGCL_LAUNCHER, must be one of auto, none"),
    },
)
def test_contradictions_are_refused(variables: str, words: str, monkeypatch: pytest.MonkeyPatch):
    set_variables(variables, monkeypatch)
    with pytest.raises(ValueError, match=words):
        dgcl.init()


def test_first_host_of_a_list():
    lists = {"n1,n2": "n1", "node[3,5]": "node3", "rack[2-3]n[08-10]-ib,x": "rack2n08-ib", "": ""}
    assert {nodes: first_host(nodes) for nodes in lists} == lists


@pytest.mark.slow
def test_tasks_of_a_step_are_ranks():
    program = """
for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    value = os.environ.pop(name)
    os.environ[{"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}.get(name, name)] = value
dgcl.init()
comm = dgcl.build_comm_info(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), part=[0, 0, 1, 1])
print(comm.all_reduce_sum(torch.ones(1)).item(), "RANK" in os.environ)
"""
    ended = run_ranks(2, dict.fromkeys(range(2), program))
    assert [status for status, _ in ended.values()] == [0, 0], ended
    assert all("2.0 False" in printed for _, printed in ended.values())
    assert "2 ranks, started by Slurm" in ended[0][1]
