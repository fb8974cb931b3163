"""The windows of an exchange are programs of their own, which divide its rows.

===============================  =======================================================================
what                             judged by
===============================  =======================================================================
a window's programs, all ranks   the proof of programs, against the restricted plan and demand
the same                         the programs that are compiled from the restricted plan, table by table
rows of all windows              each row of the whole in one window
how evenly rows are divided      counts: rows of a class in two windows differ by at most one
===============================  =======================================================================
"""

import dataclasses

import numpy as np
import pytest

from dgcl.planner.relays import without_idle_relays
from dgcl.planner.window_plans import window_trees
from dgcl.program import Program, Schedule, compile_programs
from dgcl.program.window_programs import halo_windows, window_programs
from dgcl.relation.classes import build_classes
from dgcl.relation.demand import Demand
from tests.support.plans import TREES, World, random_world
from tests.support.proof import prove
from tests.support.samples import sampled

WORLDS = [(world_size, trees, seed) for world_size in (1, 2, 3, 5, 8) for trees in TREES for seed in range(2)]


def windows_of(world: World, num_windows: int, by: str) -> list[list[Program]]:
    """Of each window the programs of all ranks."""
    num_owned = np.array([program.num_owned for program in world.programs])
    made = [window_programs(each, world.plan, num_owned, num_windows, by) for each in world.programs]
    return [list(of_window) for of_window in zip(*made, strict=True)]


def restricted(demand: Demand, items: np.ndarray) -> Demand:
    wanted = np.zeros_like(demand.readers)
    wanted[:, items] = demand.readers[:, items]
    return Demand(demand.world_size, demand.owner, wanted)


def same(a: object, b: object, leaving_out: tuple[str, ...] = ()) -> bool:
    for field in dataclasses.fields(a):  # type: ignore[arg-type]
        mine, theirs = getattr(a, field.name), getattr(b, field.name)
        if field.name in leaving_out:
            continue
        if isinstance(mine, Schedule):
            if not same(mine, theirs):
                return False
        elif not np.array_equal(mine, theirs):
            return False
    return True


@pytest.mark.parametrize(
    "world, by", sampled(WORLDS, ["mixed", "owner"], keep=lambda world, by: (world + by) % 12 == 0)
)
def test_windows_are_proved_and_divide_the_rows(world, by):
    world_size, trees, seed = world
    world = random_world(seed, world_size, trees)
    relation = world.plan.relation
    for number in (1, 2, 5) if by == "mixed" else (world_size,):
        found: list[list[np.ndarray]] = [[] for _ in world.programs]
        most = [0, 0]
        parts = window_trees(relation, without_idle_relays(world.plan), number, by)
        for window, programs in enumerate(windows_of(world, number, by)):
            items = np.concatenate([each.halo_ids for each in programs])
            if by == "owner":
                assert (world.demand.owner[items] == window).all()
            demand = restricted(world.demand, items)
            classes = build_classes(demand)
            plan = dataclasses.replace(world.plan, relation=parts[window][0], trees=parts[window][1])
            assert np.array_equal(classes.relation.dests, plan.relation.dests)
            assert np.array_equal(classes.relation.count, plan.relation.count)
            prove(programs, demand)
            for mine, anew in zip(programs, compile_programs(plan, classes), strict=True):
                assert same(mine, anew, ("places",))
            for rank, each in enumerate(programs):
                found[rank].append(each.halo_ids)
                of_window = halo_windows(world.programs[rank], world.plan, number, by) == window
                assert np.array_equal(each.halo_ids, world.programs[rank].halo_ids[of_window])
                most[0] += each.expand.rows_sent
                most[1] += each.fold.rows_sent
        for rank, program in enumerate(world.programs):
            together = np.concatenate(found[rank])
            assert np.array_equal(np.sort(together), np.sort(program.halo_ids))
        assert most == [
            sum(getattr(each, verb).rows_sent for each in world.programs) for verb in ("expand", "fold")
        ]


@pytest.mark.parametrize("seed", range(4))
def test_mixed_windows_have_items_of_each_class_evenly(seed):
    world = random_world(seed, 5, "random-1")
    relation, number = world.plan.relation, 3
    counts = np.zeros((number, relation.num_classes), np.int64)
    for window, (part, _) in enumerate(window_trees(relation, world.plan.trees, number, "mixed")):
        for source, dests, count in zip(part.source, part.dests, part.count, strict=True):
            (c,) = np.flatnonzero((relation.source == source) & (relation.dests == dests).all(axis=1))
            counts[window, c] = count
    assert np.array_equal(counts.sum(0), relation.count)
    assert (counts.max(0) - counts.min(0) <= 1).all()
    sizes = counts.sum(1)
    assert sizes.max() - sizes.min() <= 1  # remainders are carried from class to class
