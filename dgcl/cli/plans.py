"""Plan files as inputs and outputs of commands."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dgcl.cli.errors import reading
from dgcl.cli.files import replacing
from dgcl.cli.output import step

if TYPE_CHECKING:
    from dgcl.planner import Plan


def proved_plan(path: str) -> Plan:
    """Read a plan and prove it: playing or drawing a wrong one would show nothing."""
    from dgcl.planner import Plan, verify_plan

    with step(f"reading {path}"), reading(path, "plan"):
        plan = Plan.load(path)
        verify_plan(plan)
    return plan


def save_plans(*plans: tuple[str | None, Plan]) -> None:
    """Write plans to files, where paths are given: all of them appear, or none."""
    with ExitStack() as outputs:
        for path, plan in plans:
            if path is not None:
                plan.save(outputs.enter_context(replacing(path)))
