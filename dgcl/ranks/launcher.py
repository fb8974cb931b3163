"""``dgcl.launch``: runs a function on several ranks of this host, as threads or as new processes.

Threads start quickly, share arguments and do not run Python in parallel; processes get copies, and their function must
be importable. Each rank is initialised, and closes its communicators when it returns or raises.

Called by users and `dgcl/cli/bench`. Free to change while results come in rank order, the first rank's own error is
raised rather than what followed from it, an interrupt stops all, and no process outlives its caller
(`tests/dgcl/ranks/test_launcher.py`).
"""

import multiprocessing
import os
import pickle
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from dgcl.errors import CommError
from dgcl.ranks.context import context
from dgcl.ranks.control import SingleControl
from dgcl.ranks.freed_memory import keep_freed_memory, keeping, share_heap
from dgcl.ranks.gloo_groups import default_backends
from dgcl.ranks.group_control import GroupControl
from dgcl.ranks.thread_control import ThreadControl, ThreadRendezvous
from dgcl.topology.checks import check_choice, check_flag, check_index, check_num_devices, check_number

_SETUP_TIMEOUT = 1800.0
_MOST_THREADS = 1024  # of a rank; torch fails or hangs with many more
_BEGUN = "begun"  # the first message of a process


def launch(
    function: Callable[..., Any],
    num_ranks: int,
    *args: Any,
    ranks: Literal["threads", "processes"] = "threads",
    timeout: float = _SETUP_TIMEOUT,
    threads_per_rank: int | None = None,
    keep_memory: bool = False,
) -> list[Any]:
    """Run ``function(*args)`` on ``num_ranks`` ranks and return their results in rank order.

    Every rank is initialised (:func:`dgcl.init` has been called) and closes its communicators when the
    function returns or raises.

    Args:
        function: What each rank runs. For processes it must be importable (defined at the top level of a
            module).
        num_ranks: How many ranks.
        args: Its arguments, the same on every rank; threads share them, processes get copies.
        ranks: "threads" of this process (quick to start, good for tests and notebooks; their Python code
            does not run in parallel), or "processes" (freshly spawned, joined by a Gloo group).
        timeout: Seconds that ranks wait for each other during set-up, default 1800.
        threads_per_rank: Threads that torch uses in each rank; None for the rank's share of this host's cores,
            at least 1 and not more than torch uses here.
        keep_memory: Have the ranks' processes keep the memory that they free, as in :func:`dgcl.init`; this one where
            ranks are threads, for good, which helps only where it has had no other threads before.

    Raises:
        Exception: What the first rank to fail raised, with its traceback in a note; the other ranks stop.
    """
    if not callable(function):
        raise TypeError(f"function must be callable (got {type(function).__name__})")
    num_ranks = check_index(num_ranks, "num_ranks", 1)
    check_num_devices(num_ranks, "num_ranks: a job")
    from dgcl.ranks.threads import fair_threads, threads_restored

    check_choice(ranks, "ranks", ("threads", "processes"))
    check_number(timeout, "timeout", positive=True)
    num_threads = threads_per_rank
    if num_threads is None:
        num_threads = fair_threads(num_ranks)
    check_index(num_threads, "threads_per_rank", 1, _MOST_THREADS)
    if check_flag(keep_memory, "keep_memory") or (context.keeps_memory and ranks == "threads"):
        function = partial(keeping, function)
    if ranks == "processes":
        return _launch_processes(function, num_ranks, args, timeout, num_threads)
    if keep_memory:
        keep_freed_memory()
        share_heap()
    with threads_restored():
        return _launch_threads(function, num_ranks, args, timeout, num_threads)


def _run_rank(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run the function; whatever happens, no peer waits for this rank afterwards."""
    try:
        return function(*args)
    except BaseException as error:
        for comm in list(context.opened):
            comm.fail(f"stopped by {type(error).__name__}: {error}")
        raise
    finally:
        for comm in list(context.opened):
            comm.close()
        context.communicator = None
        context.control = None


def _launch_threads(
    function: Callable[..., Any], num_ranks: int, args: tuple[Any, ...], timeout: float, num_threads: int
) -> list[Any]:
    import torch

    rendezvous = ThreadRendezvous(num_ranks, timeout)
    results: list[Any] = [None] * num_ranks
    errors: list[tuple[int, BaseException]] = []
    opened: dict[int, Iterable[Any]] = {}  # communicators
    # Events, because a join that was interrupted takes its thread for ended.
    done = [threading.Event() for _ in range(num_ranks)]

    def run(rank: int) -> None:
        context.control = ThreadControl(rendezvous, rank) if num_ranks > 1 else SingleControl()
        opened[rank] = context.opened
        try:
            torch.set_num_threads(num_threads)  # of this thread, and of those that it will start
            results[rank] = _run_rank(function, args)
            rendezvous.leave(rank, "has returned")
        except BaseException as error:  # carried to the caller's thread
            errors.append((rank, error))
            rendezvous.leave(rank, f"was stopped by {type(error).__name__}: {error}")
        finally:
            done[rank].set()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    try:
        for event in done:
            event.wait()
    except BaseException as error:  # Ctrl-C reaches this thread alone; the ranks stop at their next call
        for rank in range(num_ranks):
            rendezvous.leave(rank, f"was stopped by {type(error).__name__}")
            for comm in list(opened.get(rank, ())):
                comm.fail(f"stopped by {type(error).__name__}")
        for event in done:
            event.wait()
        raise
    finally:
        for thread in threads:
            thread.join()
    _raise_first(errors)
    return results


def _launch_processes(
    function: Callable[..., Any], num_ranks: int, args: tuple[Any, ...], timeout: float, num_threads: int
) -> list[Any]:
    # Pickled here, not by multiprocessing, which would have all ranks share the memory of one tensor.
    try:
        task = pickle.dumps((function, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f'function and args must be picklable for ranks="processes" ({error}); define the function at the'
            ' top level of a module, or use ranks="threads"'
        ) from None
    spawn = multiprocessing.get_context("spawn")
    results: list[Any] = [None] * num_ranks
    errors: list[tuple[int, BaseException]] = []
    with tempfile.TemporaryDirectory(prefix="dgcl-launch-") as folder:
        store = str(Path(folder) / "store")
        pipes: dict[Connection, int] = {}
        processes = []
        begun: set[int] = set()
        try:
            for rank in range(num_ranks):
                receiver, sender = spawn.Pipe(duplex=False)
                process = spawn.Process(
                    target=_process_main,
                    args=(task, rank, num_ranks, store, timeout, num_threads, sender),
                    name=f"dgcl rank {rank}",
                    daemon=True,
                )
                process.start()
                sender.close()
                processes.append(process)
                pipes[receiver] = rank
            while pipes:
                for pipe in wait(list(pipes)):
                    assert isinstance(pipe, Connection)
                    rank = pipes[pipe]
                    try:
                        message = pickle.loads(pipe.recv_bytes())
                    except EOFError:
                        processes[rank].join()
                        message = False, _death(rank, processes[rank].exitcode, rank in begun)
                    if message == _BEGUN:
                        begun.add(rank)
                        continue
                    del pipes[pipe]
                    good, value = message
                    if good:
                        results[rank] = value
                    else:
                        errors.append((rank, value))
            for process in processes:
                process.join()
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
    _raise_first(errors)
    return results


def _death(rank: int, exit_code: int | None, begun: bool) -> CommError:
    """The error for a process that ended without an answer."""
    died = f"rank {rank} died (exit code {exit_code})"
    if begun or exit_code is None or exit_code < 0:
        return CommError(died)
    return CommError(
        f"{died} before it began: each process imports the script first, which must not launch again or fail there;"
        ' put the call of dgcl.launch under `if __name__ == "__main__":` (what the process printed says more)'
    )


def _process_main(
    task: bytes,
    rank: int,
    num_ranks: int,
    store: str,
    timeout: float,
    num_threads: int,
    sender: Connection,
) -> None:
    import torch
    import torch.distributed as dist

    sender.send_bytes(pickle.dumps(_BEGUN))
    threading.Thread(target=_end_with_parent, args=(store,), name="dgcl parent watch", daemon=True).start()
    torch.set_num_threads(num_threads)
    try:
        files = dist.FileStore(store, num_ranks)
        dist.init_process_group(default_backends(num_ranks), store=files, rank=rank, world_size=num_ranks)
        context.control = GroupControl(None, timeout)
        context.control.barrier()  # who ends at once would break connections that others still make
        try:
            function, args = pickle.loads(task)
        except AttributeError as error:  # of a notebook, or of python -c, which new processes do not have
            raise TypeError(
                f'function and args must be importable for ranks="processes" ({error}); put what they need in a module,'
                ' or use ranks="threads"'
            ) from error
        answer = _packed(_run_rank(function, args))
    except BaseException as error:  # carried to the parent
        answer = pickle.dumps((False, _portable(error)))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    sender.send_bytes(answer)
    sender.close()


def _end_with_parent(store: str) -> None:
    """End this process with the one that called :func:`launch`, which alone takes the result and removes the folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(Path(store).parent, ignore_errors=True)
    os._exit(1)


def _packed(result: Any) -> bytes:
    try:
        return pickle.dumps((True, result))
    except Exception as error:  # any class of the user's may fail to pickle in any way
        raise TypeError(
            f"function: its result cannot be sent to the caller's process ({error!r}); return numbers, strings or"
            " tensors on the CPU, or use ranks='threads'"
        ) from error


def _portable(error: BaseException) -> BaseException:
    """The error with its traceback as a note; one that cannot be pickled becomes a RuntimeError."""
    note = "".join(traceback.format_exception(error))
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # any class of the user's may fail to pickle in any way
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(note)
    return copy


def _raise_first(errors: list[tuple[int, BaseException]]) -> None:
    """Raise the cause: a rank's own error before those of ranks that only lost a peer; the rest as notes."""
    if not errors:
        return
    errors.sort(key=lambda entry: isinstance(entry[1], CommError))
    rank, error = errors[0]
    error.add_note(f"raised on rank {rank}")
    for other, consequence in errors[1:]:
        error.add_note(f"rank {other}: {type(consequence).__name__}: {consequence}")
    raise error
