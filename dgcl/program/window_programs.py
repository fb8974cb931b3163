"""Restricts a rank's program to windows: parts of its rows that are exchanged by calls of their own.

An item's row travels its own tree, so what is left of a program is a program, of the restricted plan
(:mod:`dgcl.planner.window_plans`): a rank makes it from its own tables and the plan, without other ranks. It keeps all
owned rows; of halo rows, relay rows and arrivals it has the window's, in their order, numbered anew.
Called by `dgcl/aggregation/connect_aggregators`. Free to change while each window's programs fit together on all ranks,
and each halo row is in one window (`tests/dgcl/program/test_window_programs.py`).
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dgcl.planner.array_types import BoolArray, Int64Array
from dgcl.planner.plan import Plan
from dgcl.planner.relays import without_idle_relays
from dgcl.planner.window_plans import By, window_of_places, window_trees
from dgcl.program.compile import Frame, check_rows
from dgcl.program.rank_program import Program


def window_programs(
    program: Program, plan: Plan, num_owned: Int64Array, num_windows: int, by: By
) -> list[Program]:
    """Return a rank's program of each window; those of all ranks together are of the restricted plan.

    Args:
        program: The whole program.
        plan: The plan that it was compiled from.
        num_owned: ``(P,)`` rows that each rank owns.
        num_windows, by: How rows are divided; checked before.

    Raises:
        ProgramError: The places are not those of the plan's rows.
    """
    window = window_of_places(program.places, plan.relation, num_windows, by)
    programs = []
    for number, parts in enumerate(window_trees(plan.relation, without_idle_relays(plan), num_windows, by)):
        frame = Frame.of(*parts, num_owned)
        programs.append(
            replace(
                program,
                num_stages=frame.transfers.num_stages,
                expand=frame.expand(program.rank),
                fold=frame.fold(program.rank),
                **_tables(program, window == number),
            )
        )
        check_rows(programs[-1])
    return programs


def halo_windows(program: Program, plan: Plan, num_windows: int, by: By) -> Int64Array:
    """``(num_halo,)`` the window of each halo row."""
    places = program.places[program.num_owned : program.num_local]
    return window_of_places(places, plan.relation, num_windows, by)


def _tables(program: Program, kept: BoolArray) -> dict[str, Any]:
    """The program's fields that tell of rows, of those that are ``kept``."""
    n = program.num_owned
    places = np.where(kept, program.places, -1)
    row = np.arange(len(kept), dtype=np.int32)  # owned rows keep their numbers
    row[n:] = n - 1 + np.cumsum(kept[n:])
    sent, arriving = kept[program.send_rows], kept[program.arrival_rows]
    slots = np.zeros(program.num_arrivals, np.int32)
    slots[program.arrival_slots[arriving]] = 1
    slots = np.cumsum(slots, dtype=np.int32) - 1
    halo_ids = program.halo_ids[kept[n : program.num_local]]
    return {
        "num_halo": len(halo_ids),
        "halo_ids": halo_ids,
        "send_rows": row[program.send_rows[sent]],
        "arrival_rows": row[program.arrival_rows[arriving]],
        "arrival_slots": slots[program.arrival_slots[arriving]],
        "places": np.concatenate([places[:n], places[n:][kept[n:]]]),
    }
