"""The report of gpu-check: Markdown for people, JSON for programs and for going on later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from dgcl.gpu_check.parts import Outcome, Part

_MARKDOWN, _JSON = "gpu-report.md", "gpu-report.json"
_MOST_LINES = 80


def render(outcomes: Sequence[Outcome], device: str) -> str:
    """The report as Markdown."""
    lines = [f"# gpu-check on {device}", "", "| part | | seconds |", "| --- | --- | ---: |"]
    lines += [f"| {o.part.title} | {o.status} | {o.seconds:.0f} |" for o in outcomes]
    for outcome in outcomes:
        if outcome.status in ("left out", "running"):
            continue
        text = outcome.text.strip()
        # Sections print Markdown; what other programs print, and tracebacks, is quoted.
        plain = bool(outcome.part.command) or outcome.found is None
        lines += ["", f"## {outcome.part.title}", ""]
        lines += ["```", *text.splitlines()[-_MOST_LINES:], "```"] if plain else [text]
    return "\n".join(lines) + "\n"


def write_report(folder: Path, outcomes: Sequence[Outcome], device: str) -> None:
    """Leave both forms in a folder."""
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
    """What an earlier run on the same kind of device has found, by the names of parts; nothing if there is none."""
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
