import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import dgcl
from dgcl.errors import CommError, PeerLostError
from dgcl.ranks.context import context
from dgcl.ranks.threads import available_cores, report_crowding, threads_restored
from tests.support.plans import random_world
from tests.support.ranks import join, local_ids
from tests.support.samples import named

pytestmark = pytest.mark.xdist_group("alone")

WORLD = random_world(41, 3, "line", num_nodes=12, num_edges=40)
PAIR = random_world(41, 2, num_nodes=12, num_edges=40)
ROOT = Path(__file__).resolve().parents[3]

# Threads.


def rank_and_size() -> tuple[int, int]:
    control = context.require_control()
    return control.rank, control.world_size


@pytest.mark.parametrize("num_ranks", [1, 2, 7])
def test_results_come_in_rank_order(num_ranks: int):
    assert dgcl.launch(rank_and_size, num_ranks) == [(rank, num_ranks) for rank in range(num_ranks)]


def test_threads_share_the_arguments():
    given = torch.zeros(3)
    results = dgcl.launch(lambda *args: args, 2, given, "text")
    assert all(tensor is given and text == "text" for tensor, text in results)


def test_the_callers_thread_is_not_a_rank():
    dgcl.launch(rank_and_size, 2)
    assert context.control is None
    assert context.communicator is None


def test_init_in_a_rank_changes_nothing():
    def run() -> bool:
        control = context.control
        dgcl.init()
        return context.control is control

    assert dgcl.launch(run, 2) == [True, True]


def test_ranks_share_the_cores():
    """torch has as many threads in each rank as are asked for, or the rank's share; here they stay as they
    were."""
    with threads_restored():
        torch.set_num_threads(5)
        assert dgcl.launch(torch.get_num_threads, 2, threads_per_rank=3) == [3, 3]
        assert dgcl.launch(torch.get_num_threads, 2) == [max(1, min(5, available_cores() // 2))] * 2
        assert dgcl.launch(torch.get_num_threads, 70) == [1] * 70
        assert torch.get_num_threads() == 5
        torch.set_num_threads(1)  # the user's choice is not exceeded
        assert dgcl.launch(torch.get_num_threads, 1) == [1]


@pytest.mark.slow
def test_processes_share_the_cores():
    assert dgcl.launch(torch.get_num_threads, 2, ranks="processes", threads_per_rank=3) == [3, 3]


@pytest.mark.parametrize("threads, ranks, crowded", [(64, 64, True), (1, 64, False), (64, 1, False)])
def test_more_threads_than_cores_are_reported(threads: int, ranks: int, crowded: bool, caplog):
    with threads_restored(), caplog.at_level("INFO", "dgcl"):
        torch.set_num_threads(threads)
        report_crowding(ranks)
    assert ("set OMP_NUM_THREADS=1" in caplog.text) == crowded


@named(
    "options, kind, text",
    {
        "no ranks": ({"num_ranks": 0}, ValueError, r"num_ranks must be an integer >= 1 \(got 0\)"),
        "no threads": (
            {"num_ranks": 2, "threads_per_rank": 0},
            ValueError,
            r"threads_per_rank must be an integer from 1 to 1024 \(got 0\)",
        ),
        "no such ranks": (
            {"num_ranks": 2, "ranks": "fibers"},
            ValueError,
            r"ranks must be one of threads, processes \(got 'fibers'\)",
        ),
    },
)
def test_mistakes(options: dict[str, Any], kind: type[Exception], text: str):
    with pytest.raises(kind, match=text):
        dgcl.launch(rank_and_size, **options)


def test_functions_for_processes_must_be_importable():
    with pytest.raises(TypeError, match=r"function and args must be picklable .* top level of a module"):
        dgcl.launch(lambda: None, 2, ranks="processes")


def test_a_ranks_own_error_is_raised_before_what_followed_from_it():
    """Rank 2 alone is at fault; the others wait for it in the control plane."""

    def run():
        control = context.require_control()
        if control.rank == 2:
            raise KeyError("mine")
        control.barrier()

    with pytest.raises(KeyError, match="mine") as raised:
        dgcl.launch(run, 3)
    notes = raised.value.__notes__
    assert notes[0] == "raised on rank 2"
    for rank in (0, 1):
        consequence = (
            f"rank {rank}: PeerLostError: rank {rank}: the ranks cannot meet: rank 2 was stopped by Key"
        )
        assert any(note.startswith(consequence) for note in notes)


def test_a_thread_that_returns_early_is_not_waited_for():
    def run():
        control = context.require_control()
        if control.rank == 1:
            return
        control.barrier()

    with pytest.raises(PeerLostError, match="the ranks cannot meet: rank 1 has returned"):
        dgcl.launch(run, 3)


def test_communicators_that_a_rank_leaves_open_are_closed():
    shares = WORLD.shares()
    results = dgcl.launch(lambda: join(shares), 3)
    for comm in results:
        with pytest.raises(ValueError, match="closed"):
            comm.expand(comm.owned_ids)


@pytest.mark.parametrize("where", ["a call", "the control plane"])
def test_an_interrupt_of_the_caller_stops_threads(where: str):
    """Ctrl-C reaches the thread that called launch, not the ranks."""
    shares = WORLD.shares()
    started = threading.Barrier(3)

    def run():
        comm = join(shares)
        started.wait()
        if comm.rank == 0:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        while True:
            if where == "a call":
                comm.expand(comm.owned_ids)
            else:
                comm.control.barrier()

    with pytest.raises(KeyboardInterrupt):
        dgcl.launch(run, 3)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


# Processes. Starting them takes seconds, so one start serves several checks.


class Unpicklable(Exception):
    def __init__(self, text: str):
        super().__init__(text)
        self.lock = threading.Lock()


def work(given: torch.Tensor, shares: list[Any]) -> tuple[int, float, torch.Tensor]:
    comm = join(shares)
    assert not os.environ.get("RANK"), "the library sets no environment variable"
    if comm.rank == 0:
        given.fill_(7)
    comm.control.barrier()
    result = dgcl.graph_allgather(comm.owned_ids)
    assert torch.equal(result, local_ids(comm))
    return os.getpid(), float(given[0]), result


@pytest.mark.slow
def test_processes_work_on_copies_and_send_back_copies():
    given = torch.zeros(1000)
    results = dgcl.launch(work, 2, given, PAIR.shares(), ranks="processes")
    assert len({pid for pid, _, _ in results} | {os.getpid()}) == 3
    assert [value for _, value, _ in results] == [7, 0]
    assert (given == 0).all()
    for program, (_, _, rows) in zip(PAIR.programs, results, strict=True):
        assert rows.tolist() == [*program.owned_ids, *program.halo_ids]
    for pid, _, _ in results:
        assert not Path(f"/proc/{pid}").exists()


def fail_somehow(how: str, shares: list[Any]) -> Any:
    comm = join(shares)
    if comm.rank == 1:
        if how == "unpicklable error":
            raise Unpicklable("mine")
        if how == "unpicklable result":
            return threading.Lock()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
    return comm.expand(comm.owned_ids)


@pytest.mark.slow
def test_a_process_that_dies_alone():
    with pytest.raises(CommError, match=r"rank 0 died \(exit code -6\)"):
        dgcl.launch(os.abort, 1, ranks="processes")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, kind, text",
    [
        ("killed", CommError, r"rank 1 died \(exit code -9\)|rank 1 has died"),
        ("unpicklable error", RuntimeError, "Unpicklable: mine"),
        ("unpicklable result", TypeError, "cannot be sent"),
        ("exit", SystemExit, "3"),
    ],
)
def test_processes_that_fail(how: str, kind: type[BaseException], text: str, forked_ranks: None):
    with pytest.raises(kind, match=text) as raised:
        dgcl.launch(fail_somehow, 2, how, PAIR.shares(), ranks="processes")
    assert "rank 1" in "\n".join([str(raised.value), *raised.value.__notes__])


def report_and_sleep(folder: str):
    control = context.require_control()
    (Path(folder) / str(control.rank)).write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.slow
def test_ranks_end_with_the_process_that_launched_them(tmp_path):
    script = f"""
        import dgcl
        from tests.dgcl.ranks.test_launcher import report_and_sleep

        if __name__ == "__main__":
            dgcl.launch(report_and_sleep, 2, {str(tmp_path)!r}, ranks="processes")
    """
    (folder := tmp_path / "temporary").mkdir()
    command, environment = (
        [sys.executable, "-c", textwrap.dedent(script)],
        os.environ | {"TMPDIR": str(folder)},
    )
    launcher = subprocess.Popen(command, cwd=ROOT, env=environment)
    files = [tmp_path / "0", tmp_path / "1"]
    while not all(file.exists() and file.read_text() for file in files):
        time.sleep(0.1)
    pids = [int(file.read_text()) for file in files]
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "ranks outlive their launcher"
        time.sleep(0.1)
    assert not list(folder.glob("dgcl-*"))


LISTING = """
    import torch
    import torch.distributed as dist

    import dgcl

    dgcl.init()
    comm = dgcl.build_comm_info(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]) if dist.get_rank() == 0 else None)
    x = dgcl.dispatch_features(torch.arange(4.0) if comm.rank == 0 else None).requires_grad_()
    h = dgcl.graph_allgather(x)
    assert torch.equal(h, torch.cat([comm.owned_ids, comm.halo_ids]).float())
    h.sum().backward()
    total = dgcl.collect(x.grad, dst=None)
    assert total.sum() == 4 + sum(comm.control.exchange(comm.num_halo)), total
    print(f"done-{comm.rank}\\n", end="")
"""


@pytest.mark.matrix
def test_listing_1_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LISTING))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*torchrun, str(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split()) == ["done-0", "done-1"]


@pytest.mark.slow
def test_listing_1_without_any_launcher(tmp_path):
    """One process alone is one rank."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LISTING.replace(" if dist.get_rank() == 0 else None", "")))
    run = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert run.returncode == 0


@pytest.mark.slow
def test_what_a_notebook_defines_is_not_known_to_processes():
    code = "import dgcl\ndef work(): pass\ndgcl.launch(work, 2, ranks='processes')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert 'put what they need in a module, or use ranks="threads"' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", ["dgcl.launch(work, 2, ranks='processes')", "raise SystemExit(5)"])
def test_a_script_that_launches_again_when_it_is_imported_is_told(tmp_path, line: str):
    """New processes import the script, under another name than ``__main__``."""
    guarded = "if __name__ == '__main__': dgcl.launch(work, 2, ranks='processes')"
    script = tmp_path / "script.py"
    script.write_text(f"import dgcl\ndef work(): pass\n{guarded if 'raise' in line else ''}\n{line}\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    last = next(text for text in reversed(done.stderr.splitlines()) if "Error: rank" in text)
    assert "before it began" in last
    assert 'put the call of dgcl.launch under `if __name__ == "__main__":`' in last
