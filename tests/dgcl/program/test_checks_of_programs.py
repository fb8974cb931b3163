import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dgcl.program import Program, Schedule
from dgcl.program.checks import ProgramError, check_program
from tests.dgcl.support_plans import World, make_world, random_world, wandering
from tests.dgcl.support_proof import agreed
from tests.samples import sampled


def verify(programs: list[Program]):
    """What each rank checks, and what they compare."""
    for rank, program in enumerate(programs):
        check_program(program)
        if (program.rank, program.world_size, program.num_stages) != (
            rank,
            len(programs),
            programs[0].num_stages,
        ):
            raise ProgramError("of another rank or plan")
    agreed(programs)


def replaced(world: World, place: int, **changes: Any) -> list[Program]:
    programs = list(world.programs)
    programs[place] = dataclasses.replace(programs[place], **changes)
    return programs


def array_mutations(array: np.ndarray, generator: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Ways in which a table can be wrong: a value, an order, a length."""
    flat = array.size
    for place in generator.permutation(flat)[:2].tolist():
        index = np.unravel_index(place, array.shape)
        for change in (-1, 1, -(10**6), 10**6):
            copy = array.copy()
            copy[index] += change
            yield f"[{place}] {change:+}", copy
    for _ in range(3):
        if len(array) >= 2:
            a, b = generator.choice(len(array), 2, replace=False)
            copy = array.copy()
            copy[[a, b]] = copy[[b, a]]
            yield f"swap {a} {b}", copy
    if len(array):
        yield "last dropped", array[:-1].copy()
        yield "last repeated", np.concatenate([array, array[-1:]])
    else:
        yield "grown", np.zeros((1, *array.shape[1:]), array.dtype)


def mutants(world: World, seed: int) -> Iterator[tuple[str, list[Program]]]:
    """Programs of which one rank's has one table or number changed."""
    generator = np.random.default_rng(seed)
    for program in world.programs:
        for field in dataclasses.fields(Program):
            if field.name.endswith("_ids"):
                continue  # what an item is called makes no difference here; of parts in files rows are compared
            value = getattr(program, field.name)
            where = f"rank {program.rank} {field.name}"
            if isinstance(value, np.ndarray):
                for what, array in array_mutations(value, generator):
                    yield f"{where} {what}", replaced(world, program.rank, **{field.name: array})
            elif isinstance(value, Schedule):
                for table in dataclasses.fields(Schedule):
                    for what, array in array_mutations(getattr(value, table.name), generator):
                        schedule = dataclasses.replace(value, **{table.name: array})
                        yield (
                            f"{where}.{table.name} {what}",
                            replaced(world, program.rank, **{field.name: schedule}),
                        )
            else:
                for change in (-1, 1):
                    changed = {field.name: value + change}
                    yield f"{where} {change:+}", replaced(world, program.rank, **changed)


def meaning(program: Program) -> list[Any]:
    """All that makes a difference: rows instead of where they are listed, and no places of empty portions."""
    parts: list[Any] = []
    for field in dataclasses.fields(Program):
        value = getattr(program, field.name)
        if not isinstance(value, Schedule):
            parts.append(np.asarray(value).tolist())
            continue
        for table in dataclasses.fields(Schedule):
            array = getattr(value, table.name)
            counts = value.recv_count if table.name == "recv_to" else value.send_count
            if table.name in ("send_from", "send_to", "recv_to") and array.shape == counts.shape:
                array = np.where(counts > 0, array, -1)
                if (field.name, table.name) == ("expand", "send_from"):
                    places = zip(array.ravel().tolist(), counts.ravel().tolist(), strict=True)
                    parts.append([program.send_rows[at : at + count].tolist() for at, count in places])
                    continue
            parts.append(array.tolist())
    return parts


@pytest.mark.parametrize(
    "trees", sampled(["random-1", "direct", "line", "hub", "random-2"], keep=lambda trees: trees == 0)
)
def test_every_change_of_a_table_is_rejected(trees: str):
    """Or makes no difference: then it is accepted."""
    assert_every_change_is_rejected(random_world(3, 4, trees, num_nodes=24, num_edges=60))


@pytest.mark.slow
def test_every_change_is_rejected_in_plans_of_many_stages():
    assert_every_change_is_rejected(random_world(5, 6, wandering(5), num_nodes=30, num_edges=25))


def assert_every_change_is_rejected(world: World):
    escaped, num_rejected = [], 0
    for what, programs in mutants(world, seed=5):
        same = all(
            meaning(mutant) == meaning(program)
            for mutant, program in zip(programs, world.programs, strict=True)
        )
        try:
            verify(programs)
        except (ProgramError, AssertionError):
            num_rejected += 1
            assert not same, f"{what}: rejected although nothing that matters changed"
        except Exception as error:
            escaped.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if not same:
                escaped.append(what)
    assert not escaped, f"{len(escaped)} of {num_rejected + len(escaped)}:\n" + "\n".join(escaped)
    assert num_rejected > 500


def test_waiting_for_a_later_stage_is_rejected():
    """A send that also waits for what comes after it might wait for itself."""
    world = make_world([(0, 1), (0, 2), (2, 0)], [0, 1, 2], 3, "line")
    middle = world.programs[1].expand
    assert middle.send_stage.tolist() == [1, 1]
    first = world.programs[0].expand
    assert first.send_deps.tolist() == []
    assert first.recv_stage.tolist() == [1]
    waits = dataclasses.replace(first, send_dep_ptr=np.array([0, 1]), send_deps=np.array([0], np.int32))
    with pytest.raises(ProgramError, match="expand: a send waits for what comes in its own stage or later"):
        verify(replaced(world, 0, expand=waits))
