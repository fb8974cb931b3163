"""Writes a plan, or its simulation, as one HTML file that needs no network.

The file is a template (page.html) and the data as JSON. It has the trees of the largest classes only.
Called by `dgcl/cli/plans` and `dgcl/cli/simulate`. Free to change while names in the data stay text, whatever markup
they contain, the page stays small, and it works in a browser (`tests/planner/reading/test_page.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dgcl.planner.array_types import FloatArray
from dgcl.planner.cost import stage_use
from dgcl.planner.plan import Plan
from dgcl.planner.reading.explain import explain, render_class
from dgcl.planner.reading.plan_plot import headline
from dgcl.planner.reading.render import head, seconds, tables
from dgcl.topology.layout import layout_topology
from dgcl.topology.plot import per_connection
from dgcl.topology.table import Table

if TYPE_CHECKING:
    from dgcl.topology import Topology

MOST_CLASSES, MOST_EDGES = 200, 4000  # whose trees are on a page: the largest


def write_page(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Write the page of :func:`plan_page` or :func:`page_data`."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    # Neither "</script>" nor "<!--" may stand in a script element, whatever a name says.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    Path(path).write_text(template.replace("__DATA__", text), encoding="utf-8")


def plan_page(plan: Plan, report: dict[str, Any], graph: str | None = None) -> dict[str, Any]:
    """Return the data of a plan's page; ``report`` is that of :func:`dgcl.planner.reading.plan_report.report`."""
    busy = stage_use(plan)
    steps = [("all stages", busy.sum(axis=0) / (plan.predicted_seconds or 1.0))]
    steps += [(f"stage {k}: {seconds(t)}", busy[k] / t) for k, t in enumerate(plan.stage_seconds)]
    return page_data(
        plan, plan.topology, headline(plan, graph)[0], [*head(report).items()], tables(report), steps
    )


def page_data(
    plan: Plan,
    topology: Topology,
    title: str,
    lines: Sequence[tuple[str, str]],
    shown: Sequence[Table],
    steps: Sequence[tuple[str, FloatArray]],
) -> dict[str, Any]:
    """Return the data of a page.

    Args:
        plan: Whose trees are shown.
        topology: The machine that is drawn.
        title, lines, shown: The title, (name, text) below it, and tables.
        steps: (name, share of use of each connection-direction), of each picture.
    """
    layout = layout_topology(topology)
    groups = [*layout.wires.values()]

    def use(values: FloatArray) -> list[float]:
        each = per_connection(topology, values)
        return [round(float(each[group].max()), 3) for group in groups]

    return {
        "title": title,
        "head": lines,
        "tables": [
            {
                "columns": [column.title for column in table.columns],
                "left": [column.left for column in table.columns],
                "rows": [*map(table.cells, table.rows)],
            }
            for table in shown
            if table.rows
        ],
        "size": layout.size,
        "boxes": [(layout.labels[end], *place, end in layout.ranks) for end, place in layout.places.items()],
        "wires": [
            (f"{wire.name} ({wire.kind})" + f" x {len(group)}" * (len(group) > 1), wire.bandwidth, line)
            for wire, group, line in zip(layout.wires, groups, layout.lines(), strict=True)
        ],
        "steps": [(name, use(values)) for name, values in steps],
        "classes": _classes(plan, topology, {wire: i for i, group in enumerate(groups) for wire in group}),
        "num_classes": plan.relation.num_classes,
    }


def _classes(plan: Plan, topology: Topology, drawn: dict[int, int]) -> list[tuple[str, list[int]]]:
    """The trees of the largest classes as text, and the drawn wires that they use on a machine."""
    arrays, edges = topology.arrays(), 0
    shown = []
    for c in np.argsort(-plan.relation.count, kind="stable")[:MOST_CLASSES].tolist():
        facts = explain(plan, c)
        pairs = [(edge["src"], edge["dst"]) for tree in facts["trees"] for edge in tree["edges"]]
        edges += len(pairs)
        if edges > MOST_EDGES:
            break
        links = np.isin(arrays.link_of_hop, [arrays.link_of[pair] for pair in pairs])
        wires = arrays.direction_connection[arrays.link_directions[links]]
        shown.append((render_class(facts), sorted({drawn[wire] for wire in wires.tolist()})))
    return shown
