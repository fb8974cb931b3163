"""The Promela models of the protocol, of its wake-ups and of started exchanges, checked by SPIN: they hold, and
each way of breaking them is found."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.samples import named

MODELS = Path(__file__).resolve().parents[3] / "docs" / "protocol"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("spin") is None or shutil.which("cc") is None,
        reason="needs spin and a C compiler (Debian: apt-get install spin gcc)",
    ),
]


def check(folder: Path, model: str = "exchange.pml", **parameters: int) -> tuple[int, int, str]:
    """(errors, states, what pan says) of an exhaustive search."""
    given = [f"-D{name}={value}" for name, value in parameters.items()]
    subprocess.run(["spin", *given, "-a", str(MODELS / model)], cwd=folder, check=True, capture_output=True)
    # Searching takes less time than optimising what searches.
    options = ["-O0", "-DSAFETY", "-DCOLLAPSE", "-w"]
    subprocess.run(["cc", *options, "-o", "pan", "pan.c"], cwd=folder, check=True, capture_output=True)
    said = subprocess.run(
        ["./pan", "-m1000000"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
    assert errors is not None, said
    assert states is not None, said
    assert "max search depth too small" not in said
    return int(errors[1]), int(states[1]), said


@pytest.mark.parametrize("ranks, stages, states", [(2, 1, 6195), (3, 2, 498383)])
def test_the_protocol_holds(ranks: int, stages: int, states: int, tmp_path):
    """The numbers of states are those of docs/concepts.md: all of them were visited."""
    errors, visited, said = check(tmp_path, N=ranks, K=stages, CALLS=3, B=2)
    assert errors == 0, said
    assert visited == states


def test_two_programs_of_different_numbers_of_stages_hold(tmp_path):
    """Calls of two stages and of one take turns; done flags count two in both."""
    errors, visited, said = check(tmp_path, N=3, K=2, K2=1, CALLS=3, B=2)
    assert errors == 0, said
    assert visited == 472787


def test_flags_that_count_the_stages_of_their_own_program_are_found(tmp_path):
    errors, _, said = check(tmp_path, N=3, K=2, K2=1, CALLS=3, B=2, MUTANT=5)
    assert errors > 0, said
    assert re.search(r"assertion violated .*rows", said), said


@named(
    "mutant, assertion",
    {
        "call before buffer": (1, "owner"),
        "done before row": (2, "rows"),
        "relay that does not wait": (3, "rows|sent"),
        "returns too early": (4, "rows|end state|owner"),
    },
)
def test_a_broken_protocol_is_found(mutant: int, assertion: str, tmp_path):
    errors, _, said = check(tmp_path, N=3, K=2, CALLS=3, B=2, MUTANT=mutant)
    assert errors > 0, said
    assert re.search(rf"assertion violated .*({assertion})|invalid end state", said), said


def test_no_wake_up_is_lost(tmp_path):
    errors, visited, said = check(tmp_path, "futex.pml", R=2, CALLS=3)
    assert errors == 0, said
    assert visited == 129021


@named("mutant", {"waker's fence": 1, "sleeper's fence": 2, "second look": 3, "word not cleared": 4})
def test_a_broken_wake_up_is_found(mutant: int, tmp_path):
    errors, _, said = check(tmp_path, "futex.pml", R=2, CALLS=2, MUTANT=mutant)
    assert errors > 0, said
    assert "invalid end state" in said


def test_started_exchanges_end_or_cross(tmp_path):
    errors, visited, said = check(tmp_path, "started.pml", N=2)
    assert errors == 0, said
    assert visited == 34927


@pytest.mark.parametrize("ranks", [2, 3])
@named(
    "mutant, violation",
    {
        "others are not carried on": (1, "invalid end state"),
        "begun is not waiting": (2, "assertion violated .*first"),
        "begun is read first": (3, "assertion violated .*first"),
    },
)
def test_broken_started_exchanges_are_found(mutant: int, violation: str, ranks: int, tmp_path):
    errors, _, said = check(tmp_path, "started.pml", N=ranks, MUTANT=mutant)
    assert errors > 0, said
    assert re.search(violation + r".*at depth", said), said
