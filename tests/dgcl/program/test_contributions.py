"""Contributions to a fold one by one are an exchange of their own.

==============================  ========================================================================
what                            judged by
==============================  ========================================================================
programs of all ranks           the proof of programs, against (vertex, contributor) pairs listed one by one
what rows of each rank stand    the vertex and the contributor of each pair
for
==============================  ========================================================================
"""

import numpy as np
import pytest

from dgcl.program.contribution_programs import contribution_program, contribution_rows
from dgcl.relation.demand import Demand
from tests.support.plans import TREES, random_world
from tests.support.proof import prove

WORLDS = [(world_size, trees, seed) for world_size in (1, 2, 5) for trees in TREES for seed in range(2)]


@pytest.mark.parametrize("world_size, trees, seed", WORLDS)
def test_contributions_are_proved_and_stand_for_their_rows(world_size, trees, seed):
    world = random_world(seed, world_size, trees, empty=(1,) if world_size > 2 else ())
    items = world.classes.items.tolist()  # in the order of their places
    pairs = [
        (rank, vertex)
        for rank in range(world_size)
        for vertex in items
        if world.demand.readers[0, vertex] >> rank & 1
    ]
    owner = np.array([rank for rank, _ in pairs], np.int32)
    wanted = np.zeros((1, len(pairs)), np.uint64)
    wanted[0] = [1 << int(world.demand.owner[vertex]) for _, vertex in pairs]

    programs = [contribution_program(world.plan, rank) for rank in range(world_size)]
    prove(programs, Demand(world_size, owner, wanted))
    for program, folded in zip(programs, world.programs, strict=True):
        halo_rows, owned_rows = contribution_rows(program, folded, world.plan)
        given = [(program.rank, vertex) for vertex in folded.halo_ids[halo_rows].tolist()]
        assert given == [pairs[item] for item in program.owned_ids]
        assert [pairs[item][1] for item in program.halo_ids] == folded.owned_ids[owned_rows].tolist()


def test_places_of_another_plan_are_refused():
    world, other = random_world(0, 3), random_world(1, 3)
    programs = [contribution_program(world.plan, rank) for rank in range(3)]
    for program, mine, theirs in zip(programs, world.programs, other.programs, strict=True):
        with pytest.raises(ValueError, match="are not those of the plan's rows"):
            contribution_rows(program, theirs, world.plan)
        contribution_rows(program, mine, world.plan)
