import dataclasses
import re
from typing import Any

import pytest

import dgcl
from dgcl.errors import DisagreementError
from dgcl.ranks.context import context
from dgcl.transport.common.program_agreement import check_agreement
from tests.support.plans import TREES, World, random_world
from tests.support.ranks import join
from tests.support.samples import named

LINE = random_world(71, 4, "line")


def heard(programs: list[Any]) -> list[str | None]:
    """What each rank is told."""

    def run() -> str | None:
        control = context.require_control()
        try:
            check_agreement(control, {"halo": programs[control.rank]})
        except DisagreementError as error:
            return str(error)
        return None

    return dgcl.launch(run, len(programs))


@pytest.mark.parametrize("trees", TREES)
def test_programs_of_one_plan_agree(trees: str):
    assert heard(random_world(70, 4, trees).programs) == [None] * 4


def swapped(rank: int, world: World) -> list[Any]:
    return [world.programs[r] if r == rank else LINE.programs[r] for r in range(4)]


@named(
    "programs, text",
    {
        "another graph": (swapped(2, random_world(72, 4, "line")), "is not what rank"),
        "another method": (
            swapped(1, random_world(71, 4, "direct")),
            "rank 0's has 3 stages, rank 1's has 1",
        ),
        "another number of stages": (
            [
                dataclasses.replace(program, num_stages=3 + (rank == 3))
                for rank, program in enumerate(LINE.programs)
            ],
            "rank 0's has 3 stages, rank 3's has 4",
        ),
        "another world": (
            [*LINE.programs[:3], random_world(71, 5, "line").programs[3]],
            "stages|numbers of ranks",
        ),
    },
)
def test_programs_of_different_plans_are_refused_on_every_rank(programs: list[Any], text: str):
    said = heard(programs)
    assert len(set(said)) == 1
    assert said[0] is not None
    assert re.search(text, said[0])


def test_one_row_elsewhere_is_a_difference():
    program = LINE.programs[1]
    schedule = dataclasses.replace(program.expand, send_to=program.expand.send_to + 1)
    programs = [*LINE.programs]
    programs[1] = dataclasses.replace(program, expand=schedule)
    (said,) = set(heard(programs))
    assert said is not None
    assert said.startswith("ranks run different plans: what rank 1 sends is not what rank 0 expects; build")


def test_a_communicator_checks_it():
    other = random_world(73, 4, "line").shares()
    mixed = [*LINE.shares()[:3], other[3]]

    def run():
        with pytest.raises(DisagreementError, match="ranks run different plans"):
            join(mixed)

    dgcl.launch(run, 4)
