"""What every test relies on: examples that are the same in every run, a Ctrl-C that is heard, and who runs where.

A run of the suite must say the same thing about the same code twice, so hypothesis draws the same examples each time:

* ``daily``, the default: 12 examples of each property;
* ``--hypothesis-profile=thorough``, as ``.ci/run`` does: 200;
* ``--hypothesis-profile=explore``: 200 that nobody has seen.

No deadlines, and no check of how fast examples are drawn, since the first of a run may compile a kernel. What torch and
NumPy draw is the same, too, whichever tests a worker has run before.

With several workers (``-n 2``) a worker takes one file after the other. Tests of the group ``alone`` (stress, faults,
deadlines, measured links) all go to one worker, which begins with them: no two of them ever run at the same time. The
group ``hosts`` shares standing ranks in network namespaces, counts and compares, and may run beside it.

Torch and BLAS run on one thread, here and in all processes that tests start: workers and ranks are already more than
the cores, and threads that wait for each other take many times longer than the few rows of a test.

With ``CI=true`` nothing is skipped for want of a tool: a test that would be is a failure.
"""

import functools
import gc
import os
import random
import re
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.samples import mark_samples, thin_matrices

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch or NumPy's BLAS

UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("daily", **UNTIMED, derandomize=True, max_examples=12)
settings.register_profile("thorough", **UNTIMED, derandomize=True, max_examples=120)
settings.register_profile("explore", **UNTIMED, derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("daily")

# A shell that starts the tests in the background has them ignore SIGINT, and all the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Begin each test with the same state of the generators that are shared by all."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what collection makes, a million objects, out of the garbage collector: that was a third of its time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what only one worker can do, so that nobody waits for it at the end; leave a sample of big tables."""
    mark_samples(items)
    thin_matrices(items)
    if TORCH < (2, 6):
        for item in items:
            if "compil" in item.nodeid and "tests/dgcl" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="torch before 2.6 crashes where threads compile"))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


TORCH = tuple(int(number) for number in version("torch").split(".")[:2])

# What a machine may lack: a GPU, data, rights. Tools are installed by .ci/run.
MAY_BE_MISSING = re.compile(r"CUDA device|GPU|is not (here|present)|root|hosts cannot be made|PyG keeps one")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Look at why a test was skipped."""
    return _with_all_tools((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Look at why a whole file was skipped."""
    return _with_all_tools((yield))


def _with_all_tools(report: Any) -> Any:
    """The report, a failure if this is CI and something was skipped for want of a tool."""
    if report.skipped and os.environ.get("CI") == "true" and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if not MAY_BE_MISSING.search(reason):
            report.outcome = "failed"
            report.longrepr = (
                f"{reason}: nothing may be skipped in CI for want of a tool (.ci/run installs them)"
            )
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out groups, and else whole files, in the order of collection."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByGroupOrFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group_of(config.rootpath / nodeid.split("::", 1)[0])

    config.option.loadscopereorder = False
    return ByGroupOrFile(config, log)


@functools.cache
def _group_of(path: Path) -> str:
    """The group that a file of tests names, or the file alone; xdist's own suffix of test ids may be lost."""
    found = re.search(r"xdist_group\(\"(\w+)\"\)", path.read_text(encoding="utf-8"))
    return str(path) if found is None else found[1]
