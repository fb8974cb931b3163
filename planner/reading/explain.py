"""Shows how the rows of one class travel: its trees, as data and as text.

A class is named by its number, or by owner and destinations: ``0>1,5``.
Called by `page`, `dgcl/cli/plan` and `dgcl/cli/plans`. Free to change while both names find their class or an error
says which there are, and each tree is drawn with its stages and relays (`tests/planner/reading/test_report.py`).
"""

import re
from typing import Any

import numpy as np

from dgcl.planner.plan import Plan
from dgcl.planner.relation import Relation


def find_class(relation: Relation, text: str) -> int:
    """Return the class that ``text`` names: its number, or owner and destinations, as in ``3`` or ``0>1,5``.

    Raises:
        ValueError: No such class; says which there are.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        return _existing(relation, int(text))
    match = re.fullmatch(r"([0-9]{1,18})\s*>\s*([0-9]{1,18}(?:\s*,\s*[0-9]{1,18})*)", text)
    if match is None:
        raise ValueError(f"a class is given by its number or as OWNER>DEST,DEST,... (got {text!r})")
    source, dests = int(match[1]), sorted({int(d) for d in match[2].split(",")})
    for rank in (source, *dests):
        if rank >= relation.world_size:
            raise ValueError(f"class {text}: there is no rank {rank} among {relation.world_size}")
    mine = np.flatnonzero(relation.source == source)
    for c in mine.tolist():
        if relation.dest_ranks(c) == dests:
            return int(c)
    raise ValueError(
        f"no class of rank {source} goes to exactly {', '.join(map(str, dests))}"
        f" (rank {source} owns {mine.size} classes)"
    )


def _existing(relation: Relation, c: int) -> int:
    if not 0 <= c < relation.num_classes:
        have = f"classes 0 to {relation.num_classes - 1}" if relation.num_classes else "no classes"
        raise ValueError(f"class {c} does not exist: the relation has {have}")
    return c


def explain(plan: Plan, c: int) -> dict[str, Any]:
    """Return the trees of class ``c`` as JSON values, largest first, with the kinds of connections on each edge."""
    relation, trees = plan.relation, plan.trees
    _existing(relation, c)
    names = [device.name for device in plan.topology.devices]
    edges = trees.edge_src, trees.edge_dst, trees.edge_stage
    mine = np.flatnonzero(trees.tree_class == c)
    mine = mine[np.argsort(-trees.tree_count[mine], kind="stable")]
    dests = relation.dest_ranks(c)
    return {
        "class": c,
        "source": {"rank": int(relation.source[c]), "device": names[relation.source[c]]},
        "destinations": [{"rank": d, "device": names[d]} for d in dests],
        "vertices": int(relation.count[c]),
        "trees": [
            {
                "tree": int(t),
                "vertices": int(trees.tree_count[t]),
                "edges": [
                    {
                        "src": src,
                        "dst": dst,
                        "stage": stage,
                        "relay": dst not in dests,
                        "route": _route(plan, src, dst),
                    }
                    for src, dst, stage in zip(
                        *(each[slice(*trees.edge_ptr[t : t + 2])].tolist() for each in edges), strict=True
                    )
                ],
            }
            for t in mine.tolist()
        ],
    }


def _route(plan: Plan, src: int, dst: int) -> list[str]:
    arrays = plan.topology.arrays()
    link = int(arrays.link_of[src, dst])
    hops = arrays.link_directions[arrays.link_ptr[link] : arrays.link_ptr[link + 1]]
    return [plan.topology.connections[int(arrays.direction_connection[c])].kind for c in hops]


def render_class(facts: dict[str, Any], most: int = 8) -> str:
    """Return the result of :func:`explain` as text; at most ``most`` trees, each drawn from its root."""
    source = facts["source"]
    dests = ", ".join(f"{d['rank']} ({d['device']})" for d in facts["destinations"])
    lines = [
        f"class {facts['class']}: {facts['vertices']} vertices of rank {source['rank']} ({source['device']}),"
        f" needed by {dests}"
    ]
    for tree in facts["trees"][:most]:
        share = tree["vertices"] / facts["vertices"]
        lines += ["", f"tree {tree['tree']}: {tree['vertices']} vertices ({share:.1%})"]
        lines.append(f"  {source['rank']}")
        lines += _branches(tree["edges"], source["rank"], "  ")
    if len(facts["trees"]) > most:
        rest = facts["trees"][most:]
        lines += ["", f"and {len(rest)} more trees for {sum(t['vertices'] for t in rest)} vertices"]
    return "\n".join(lines)


def _branches(edges: list[dict[str, Any]], at: int, indent: str) -> list[str]:
    """Return the lines below rank ``at``, by stage."""
    lines = []
    below = sorted((e for e in edges if e["src"] == at), key=lambda e: (e["stage"], e["dst"]))
    for i, edge in enumerate(below):
        last = i + 1 == len(below)
        fork, relay = "`-" if last else "|-", ", relay" if edge["relay"] else ""
        how = f"stage {edge['stage']}, {' + '.join(edge['route'])}{relay}"
        lines.append(f"{indent}{fork} {edge['dst']}   {how}")
        lines += _branches(edges, edge["dst"], indent + ("   " if last else "|  "))
    return lines
