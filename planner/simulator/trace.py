"""Turns a simulation into a trace for chrome://tracing and ui.perfetto.dev.

Ranks that send are processes, messages are bars, and the use of connections is counters; times are in microseconds.
Called by `dgcl/cli/simulate`. Free to change while there is a bar for each message, from its first to its last byte
(`tests/planner/simulator/test_simulate.py`).
"""

from typing import Any

import numpy as np

from dgcl.planner.simulator.event_simulator import Simulation


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """Return a trace event object: one process per sending rank, one lane per receiver and stage; times in us.

    Behind them is a counter of each connection-direction's use, from 0 to 1, by slices of the simulation. A message's
    bar runs from its first to its last byte. When its rows were present and the peer ready (before its latency) is in
    its arguments.
    """
    sent = simulation.messages
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} sends"}}
        for rank in sorted(set(sent.src.tolist()))
    ]
    for m in range(sent.num):
        src, stage, dst = int(sent.src[m]), int(sent.stage[m]), int(sent.dst[m])
        name = f"stage {stage} to rank {dst}"
        events.append({"name": "thread_name", "ph": "M", "pid": src, "tid": m, "args": {"name": name}})
        begin, end = float(simulation.flowing[m]) * 1e6, float(simulation.arrived[m]) * 1e6
        events.append(
            {
                "name": f"{src} > {dst}, stage {stage}",
                "cat": f"stage {stage}",
                "ph": "X",
                "pid": src,
                "tid": m,
                "ts": begin,
                "dur": end - begin,
                "args": {
                    "rows": int(sent.rows[m]),
                    "bytes": float(simulation.bytes[m]),
                    "issued_us": float(simulation.issued[m]) * 1e6,
                },
            }
        )
    behind = int(sent.src.max(initial=-1)) + 1
    events.append(
        {"name": "process_name", "ph": "M", "pid": behind, "args": {"name": "connections, share in use"}}
    )
    width = simulation.seconds * 1e6 / max(1, len(simulation.slices))
    for c in np.flatnonzero(simulation.direction_bytes):
        use = np.append(simulation.slices[:, c], 0.0).round(4)
        for k in np.flatnonzero(np.diff(use, prepend=-1.0)).tolist():
            name, value = simulation.direction_names[c], float(use[k])
            events.append({"name": name, "ph": "C", "pid": behind, "ts": k * width, "args": {"used": value}})
    return {"displayTimeUnit": "ms", "traceEvents": events}
