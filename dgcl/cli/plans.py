"""Plan files as inputs of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgcl.cli.errors import reading
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
