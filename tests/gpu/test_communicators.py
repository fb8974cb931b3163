"""Whole communicators on GPUs: ranks that are processes, several on one GPU if need be.

What the ranks do is in :mod:`tests.gpu.ranks`, and takes the device by name: a case here shows on the CPU that it
finds what is right.
"""

from functools import partial

import pytest

import dgcl
from dgcl.transport.cuda import trial_process
from tests.gpu import ranks as work

_SECONDS = 120.0

launch = partial(dgcl.launch, ranks="processes", timeout=_SECONDS)


def test_the_checks_find_what_is_right_on_the_cpu():
    answers = dgcl.launch(work.check_rank, 2, 1 << 7, "direct", "cpu")
    assert work.wrong_kinds(answers) == []
    assert len(answers[0]) == len(trial_process.KINDS) + 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    "count, method, through_host",
    [(2, "direct", False), (4, "spst", False), (8, "direct", False), (2, "direct", True), (4, "spst", True)],
)
def test_ranks(count: int, method: str, through_host: bool):
    """Rows and gradients to the bit, peer to peer and in stages, directly and through the host's memory."""
    answers = launch(work.check_rank, count, 1 << 13, method, "cuda", through_host)
    assert work.wrong_kinds(answers) == []


@pytest.mark.gpu
def test_the_trial_of_set_up():
    launch(trial_process.main, 2, "cuda", 50)


@pytest.mark.gpu
def test_threads_that_share_a_gpu_are_refused():
    with pytest.raises(ValueError, match="ranks 0 and 1 are threads and share GPU"):
        launch(work.check_rank, 2, 1 << 7, "direct", "cuda", ranks="threads")


@pytest.mark.gpu
@pytest.mark.parametrize("count, method", [(2, "direct"), (4, "spst")])
def test_precision(count: int, method: str):
    """The largest error of folds of 16-bit floats against float64, as a share of what is allowed."""
    shares = work.largest_shares(launch(work.precision_rank, count, 1 << 12, method, "cuda"))
    assert all(0.0 < share <= 1.0 for share in shares.values()), shares


@pytest.mark.gpu
@pytest.mark.parametrize("channel", ["memory", "collective"])
@pytest.mark.parametrize("kind", list(work.FAULTS))
def test_faults(kind: str, channel: str, tmp_path):
    """What the others say of a rank that is late, or is killed, and whether the device goes on."""
    texts = work.fault_reports(kind, channel, tmp_path, "cuda")
    assert all(work.FAULTS[kind] in text and "works on" in text for text in texts), texts
