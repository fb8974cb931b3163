"""dgcl: planned communication for full-graph training of graph neural networks on many devices.

    >>> import dgcl
    >>> dgcl.init()                          # joins the process group, or makes one
    >>> data = dgcl.dispatch(data)           # partition, plan, connect; each rank stores its rows
    >>> model = dgcl.distribute(model)       # layers exchange rows; gradients are those of one device
    >>> out = model(data.x, data.edge_index) # from here on: the script's own lines
    >>> F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()

Names load on first use (PEP 562): ``dgcl.planner`` and ``dgcl.topology`` work without torch, and quickly.
"""

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_NAMES = {
    "init": "dgcl.api",
    "dispatch_features": "dgcl.api",
    "dispatch": "dgcl.distributed.dispatch",
    "fetch": "dgcl.api",
    "graph_allgather": "dgcl.api",
    "graph_allgather_async": "dgcl.api",
    "collect": "dgcl.api",
    "current_communicator": "dgcl.api",
    "advise": "dgcl.advisor.choice",
    "build_comm_info": "dgcl.build",
    "load_comm_info": "dgcl.build",
    "build_from_local": "dgcl.local_build",
    "neighbors": "dgcl.prepare.neighbor_lists",
    "PlanOptions": "dgcl.planner",
    "PartitionOptions": "dgcl.options",
    "EdgePlacement": "dgcl.placement.placement_strategy",
    "Communicator": "dgcl.communicator",
    "Offload": "dgcl.offload.offload",
    "check_model": "dgcl.nn.inexact",
    "distribute": "dgcl.distributed.distribute",
    "launch": "dgcl.ranks.launcher",
    "rank": "dgcl.api",
    "local": "dgcl.rows.own_tensors",
    "as_rows": "dgcl.rows.own_tensors",
    "rowwise": "dgcl.rows.rowwise",
    "CommError": "dgcl.errors",
    "PeerLostError": "dgcl.errors",
    "CommTimeoutError": "dgcl.errors",
    "DisagreementError": "dgcl.errors",
    "InexactWarning": "dgcl.errors",
}
_MODULES = ("bench", "frameworks", "graph", "nn", "planner", "topology")

__all__ = [*_NAMES, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"dgcl.{name}")
    else:
        # with a name, and no object, Python adds no suggestion of its own
        raise AttributeError(f"module 'dgcl' has no attribute {name!r}{_hint(name)}", name=name)
    globals()[name] = value
    return value


def _hint(name: str) -> str:
    """What was meant, perhaps; names of ``dgcl.nn`` are looked up where torch is loaded anyway."""
    if name.startswith("_"):
        return ""
    import sys

    from dgcl.topology.checks import nearest

    if "torch" in sys.modules and name in importlib.import_module("dgcl.nn").__all__:
        return f"; did you mean dgcl.nn.{name}?"
    return nearest(name, [*_NAMES, *_MODULES]) or "; dir(dgcl) lists all names"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
