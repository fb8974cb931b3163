"""Which rank this process is, by the environment variables of what started it: torchrun, Slurm, Open MPI, or PMI."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from dgcl.topology.checks import check_choice

_FIRST_WAIT = 60.0  # seconds: a shell inside an allocation, or a notebook, may have variables and no peers
_PORTS, _NUM_PORTS = 15_000, 10_000
_LOOPBACK = "127.0.0.1"
#: The first are those of Slurm's steps alone: mpirun in a job of Slurm's starts its helpers as a step.
_NODE_LISTS = "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"
_JOBS = "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"


@dataclass(frozen=True)
class Launched:
    """A rank of a job that something else than dgcl has started.

    Attributes:
        launcher: Its name, for people.
        rank, size: This rank, and the number of ranks.
        local_rank: Its number in its machine; None: unknown.
        local_size: How many ranks there are in its machine; 0: unknown.
        first_wait: Seconds in which all ranks must come; the user's timeout may be less.
        source: The variables that say so, with their values; "" for torch's own.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int
    first_wait: float
    source: str = ""

    @property
    def way_out(self) -> str:
        """What to do where no such ranks were meant."""
        return (
            f"{self.launcher} says that this is rank {self.rank} of {self.size} ({self.source}); for a job of one rank"
            " of its own set DGCL_LAUNCHER=none, or call dgcl.init(launcher=None)"
        )

    def address(self) -> tuple[str, int]:
        """Host and port of rank 0's store.

        Raises:
            ValueError: They are not known.
        """
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if self.source:
            skipped = int(self.launcher != "Slurm")
            port = port or _port_of_job(skipped, bool(host))
            host = host or (
                _LOOPBACK if self.local_size == self.size else first_host(_first(_NODE_LISTS[skipped:]))
            )
        if host and port.isdecimal():
            return host, int(port)
        line = (
            "export MASTER_ADDR and MASTER_PORT, for example with"
            " `mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 ...` (Open MPI), or"
            " `mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 ...` (MPICH, Intel MPI)"
        )
        raise ValueError(
            f"MASTER_ADDR and MASTER_PORT must say where rank 0 can be reached, as torchrun does (got {host!r} and"
            f" {port!r})" + (f"; {line}. {self.way_out}" if self.source else "")
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
    given = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if "RANK" in given:
        if len(given) < 2:
            raise ValueError("WORLD_SIZE must be set where RANK is, as torchrun does (got none)")
        return _checked("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",), _number("LOCAL_WORLD_SIZE"))
    for found in (_open_mpi(), _slurm(), _pmi()):
        if found is not None:
            return found
    if given and _number("WORLD_SIZE") != 1:
        raise ValueError(
            f"RANK must be set where WORLD_SIZE is, as torchrun does (got WORLD_SIZE={os.environ['WORLD_SIZE']})"
        )
    return None


def local_rank() -> int | None:
    """This rank's number in its machine, as torch's variable or the launcher says; None: unknown."""
    number, job = _number("LOCAL_RANK"), launched()
    return number if number is not None or job is None else job.local_rank


def _open_mpi() -> Launched | None:
    names = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)
    return _found("Open MPI", *names, _number("OMPI_COMM_WORLD_LOCAL_SIZE"))


def _slurm() -> Launched | None:
    """A task of a step: Slurm starts PMI's, too; but another size is that of a launcher inside the step."""
    size = _number("PMI_SIZE")
    if size is not None and size != _number("SLURM_STEP_NUM_TASKS"):
        return None
    tasks: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        tasks += [int(number)] * int(times or 1)
    node = _number("SLURM_NODEID") or 0
    here = tasks[node] if node < len(tasks) else None
    return _found("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), here)


def _pmi() -> Launched | None:
    here = _number("MPI_LOCALNRANKS") or _number("PMI_LOCAL_SIZE")
    return _found("PMI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), here)


def _found(launcher: str, rank: str, size: str, local: tuple[str, ...], here: int | None) -> Launched | None:
    """What these variables say; None where there is one rank, or not all are set."""
    if rank not in os.environ or (_number(size) or 0) <= 1:
        return None
    return _checked(launcher, rank, size, local, here)


def _checked(launcher: str, rank: str, size: str, local: tuple[str, ...], here: int | None) -> Launched:
    number, count = _number(rank), _number(size)
    if number is None or count is None or not number < count:
        raise ValueError(
            f"{rank} must be an integer from 0 below {size} (got {rank}={os.environ[rank]} and"
            f" {size}={os.environ[size]})"
        )
    places = [place for name in local if (place := _number(name)) is not None]
    is_torch = launcher == "torchrun"
    return Launched(
        launcher,
        number,
        count,
        places[0] if places else None,
        here or 0,
        float("inf") if is_torch else _FIRST_WAIT,
        "" if is_torch else f"{rank}={number}, {size}={count}",
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def first_host(nodes: str) -> str:
    """The first of Slurm's list of nodes, which writes ``node[01-03,07],gpu5`` for five; "" of an empty list."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def _port_of_job(skipped: int, has_host: bool) -> str:
    """A port that all ranks of the job take, and few other jobs; torch's where only the host is given; else ""."""
    job = _first(_JOBS[skipped:])
    if not job:
        return "29500" if has_host else ""
    step = 0 if skipped else _number("SLURM_STEP_ID") or 0
    digits = "".join(re.findall(r"\d", job))[-4:] or "0"
    return str(_PORTS + (int(digits) + step) % _NUM_PORTS)


def _first(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
