"""The report of ``make gpu-check``: Markdown for people, JSON for programs and for ``--resume``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.gpu.parts import Outcome, Part

_MARKDOWN, _JSON = "gpu-report.md", "gpu-report.json"
_MOST_LINES = 120


def render(outcomes: Sequence[Outcome], device: str) -> str:
    """The report as Markdown."""
    lines = [
        f"# gpu-check on {device}",
        "",
        "| part | what it shows | | seconds |",
        "| --- | --- | --- | ---: |",
    ]
    lines += [f"| {o.part.name} | {o.part.title} | {o.status} | {o.seconds:.0f} |" for o in outcomes]
    for outcome in outcomes:
        if outcome.status not in ("left out", "running"):
            said = outcome.text.strip().splitlines()[-_MOST_LINES:]
            lines += ["", f"## {outcome.part.name}", "", "```", *said, "```"]
    return "\n".join(lines) + "\n"


def write_report(folder: Path, outcomes: Sequence[Outcome], device: str) -> None:
    """Write both forms into a folder."""
    (folder / _MARKDOWN).write_text(render(outcomes, device))
    report = {
        "device": device,
        "parts": [
            {"name": o.part.name, "status": o.status, "seconds": o.seconds, "found": o.found, "text": o.text}
            for o in outcomes
        ],
    }
    (folder / _JSON).write_text(json.dumps(report, indent=1))


def read_report(folder: Path, parts: Iterable[Part], device: str) -> dict[str, Outcome]:
    """What an earlier run on the same kind of device has found, by the names of parts; empty if there is none."""
    try:
        report = json.loads((folder / _JSON).read_text())
        known = {part.name: part for part in parts}
        if report["device"] != device:
            return {}
        return {
            row["name"]: Outcome(known[row["name"]], row["status"], row["seconds"], row["text"], row["found"])
            for row in report["parts"]
            if row["name"] in known
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
