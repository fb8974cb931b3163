"""Simulated variants of one plan: orders of sending, slices, one core per rank, and a slow device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dgcl.planner.plan import Plan
from dgcl.planner.simulator.simulate import simulate

SLICES = 16
SLOWER = 2.0


@dataclass(frozen=True)
class Answer:
    """One simulated variant of a plan.

    Attributes:
        question: as text.
        seconds: simulated.
        to_model: seconds / the plan's predicted seconds.
    """

    question: str
    seconds: float
    to_model: float

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return asdict(self)


def what_if(plan: Plan) -> list[Answer]:
    """Simulate a plan in each order of sending, in slices, by one core per rank, and with one slow device.

    The slow device is the one whose connections carry the most bytes. Empty for a plan that sends nothing.
    """
    if plan.trees.num_edges == 0:
        return []
    loaded = _busiest_rank(plan)
    device = plan.topology.devices[loaded].name
    variants: list[tuple[str, dict[str, Any]]] = [
        ("stages with barriers, as the model has it", {"order": "barrier"}),
        ("each rank goes on when its own stage is done", {"order": "neighbours"}),
        (
            f"likewise, device {device} {SLOWER:g} times slower",
            {"order": "neighbours", "slow": {loaded: SLOWER}},
        ),
        ("everything at once, shared fairly", {}),
        (f"likewise, {SLICES} slices", {"slices": SLICES}),
        ("likewise, one send at a time per rank", {"sends_at_once": 1}),
    ]
    answers = []
    for question, options in variants:
        seconds = simulate(plan, **options).seconds
        answers.append(Answer(question, seconds, seconds / plan.predicted_seconds))
    return answers


def _busiest_rank(plan: Plan) -> int:
    """Return the rank that sends and receives the most rows; the lowest of equals."""
    ends = np.concatenate([plan.trees.edge_src, plan.trees.edge_dst])
    rows = np.tile(plan.trees.edge_count().astype(np.float64), 2)
    return int(np.argmax(np.bincount(ends, weights=rows, minlength=plan.world_size)))


def render_what_if(answers: list[Answer]) -> str:
    """Return the answers as a table."""
    if not answers:
        return "nothing is sent"
    width = max(len(answer.question) for answer in answers)
    return "\n".join(
        f"{answer.question:<{width}}  {answer.seconds * 1e3:10.3f} ms  {answer.to_model:6.3f} x model"
        for answer in answers
    )
