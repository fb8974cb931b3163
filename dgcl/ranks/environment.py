"""Reads which rank this process is from the variables of torchrun, Slurm, Open MPI or PMI.

Only torchrun's are meant for torch. Others are a guess, which ``DGCL_LAUNCHER=none`` or ``dgcl.init(launcher=None)``
turns off. The order of launchers matters: ``mpirun`` in a Slurm job starts its helpers as a step of Slurm.

Called by `gloo_groups`, `dgcl/api`, `dgcl/cli/jobs` and `dgcl/transport/cuda/gpu`. Free to change while the variables
of each launcher give the same rank, size and address, and contradictions are refused
(`tests/dgcl/ranks/test_environment.py`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from dgcl.topology.checks import check_choice

#: Seconds in which all ranks must come that no torchrun has started: a notebook may have variables and no peers.
FIRST_WAIT = 60.0

#: Rank, size, rank in the machine, ranks there, nodes, jobs: the first variable of each that is set. ``mpirun`` in a
#: job of Slurm's starts its helpers as a step: what is inside them comes first, and no variable of a step counts there.
_LAUNCHERS = {
    "torchrun": "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE - -",
    "Open MPI": "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"
    " SLURM_JOB_NODELIST PMIX_NAMESPACE,OMPI_MCA_ess_base_jobid,SLURM_JOB_ID,PBS_JOBID",
    "Slurm": "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID -"
    " SLURM_STEP_NODELIST,SLURM_JOB_NODELIST SLURM_JOB_ID",
    "PMI": "PMI_RANK PMI_SIZE MPI_LOCALRANKID,PMI_LOCAL_RANK MPI_LOCALNRANKS,PMI_LOCAL_SIZE"
    " SLURM_JOB_NODELIST SLURM_JOB_ID,PBS_JOBID",
}


@dataclass(frozen=True)
class Launched:
    """A rank of a job that something else than dgcl has started.

    Attributes:
        launcher: Its name, for people.
        rank, size: This rank, and the number of ranks.
        local_rank, local_size: The same in its machine; None: unknown.
        nodes, job: Slurm's list of machines, and what tells this job from others; "": unknown.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    nodes: str
    job: str

    @property
    def is_guess(self) -> bool:
        """Whether nobody has said that the variables are for torch."""
        return self.launcher != "torchrun"

    @property
    def way_out(self) -> str:
        """What to do where no such ranks were meant."""
        return (
            f". {self.launcher} says that this is rank {self.rank} of {self.size}; for a job of one rank of its own set"
            " DGCL_LAUNCHER=none, or call dgcl.init(launcher=None)"
        ) * self.is_guess

    def address(self) -> tuple[str, int]:
        """Host and port of rank 0's store.

        Raises:
            ValueError: They are not known.
        """
        host, port = _first("MASTER_ADDR"), _first("MASTER_PORT")
        if self.is_guess:
            digits = re.sub(r"\D", "", self.job)[-4:]
            step = _number("SLURM_STEP_ID") or 0 if self.launcher == "Slurm" else 0
            port = port or (str(15_000 + (int(digits) + step) % 10_000) if digits else "29500" * bool(host))
            host = host or ("127.0.0.1" if self.local_size == self.size else first_host(self.nodes))
        if host and port.isdecimal():
            return host, int(port)
        raise ValueError(
            f"MASTER_ADDR and MASTER_PORT must say where rank 0 can be reached, as torchrun does (got {host!r} and"
            f" {port!r}); by hand: `mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 ...` (Open MPI), or"
            f" `mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 ...` (MPICH, Intel MPI){self.way_out}"
        )


def launched(launcher: str | None = "auto") -> Launched | None:
    """What the environment says about this process; None: it is a job of one rank.

    Args:
        launcher: None, and with "auto" ``DGCL_LAUNCHER=none``: whatever it says.

    Raises:
        ValueError: Variables contradict each other, or have no such values.
    """
    if launcher == "auto":
        launcher = os.environ.get("DGCL_LAUNCHER", launcher).lower()
    if check_choice(launcher or "none", "launcher, or DGCL_LAUNCHER,", ("auto", "none")) == "none":
        return None
    for name, variables in _LAUNCHERS.items():
        names = variables.split()
        rank, size = names[:2]
        if rank not in os.environ or size not in os.environ:
            continue
        if name == "Slurm" and os.environ.get("PMI_SIZE", os.environ[size]) != os.environ[size]:
            continue  # of a launcher inside the step; Slurm itself sets PMI's, too
        number, count = _number(rank), _number(size)
        if number is None or count is None or not number < count:
            raise ValueError(
                f"{rank} must be an integer from 0 below {size} (got {rank}={os.environ[rank]} and"
                f" {size}={os.environ[size]})"
            )
        if count > 1 or name == "torchrun":
            local, here = map(_number, names[2:4])
            nodes, jobs = map(_first, names[4:])
            return Launched(name, number, count, local, here, nodes, jobs)
    if _first("RANK") or _number("WORLD_SIZE") not in (None, 1):
        raise ValueError(
            "RANK and WORLD_SIZE must be set together, as torchrun does"
            f" (got {_first('RANK')!r} and {_first('WORLD_SIZE')!r})"
        )
    return None


def local_rank() -> int | None:
    """This rank's number in its machine, as torch's variable or the launcher says; None: unknown."""
    number, job = _number("LOCAL_RANK"), launched()
    return number if number is not None or job is None else job.local_rank


def first_host(nodes: str) -> str:
    """The first of Slurm's list of nodes, which writes ``node[01-03,07],gpu5`` for five; "" of an empty list."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def _number(names: str) -> int | None:
    text = _first(names)
    return int(text) if text.isdecimal() else None


def _first(names: str) -> str:
    return next((os.environ[name] for name in names.split(",") if os.environ.get(name)), "")
