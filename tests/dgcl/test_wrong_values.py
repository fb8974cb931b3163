"""Values of another kind for each argument of each public function: an error of ours names the argument.

What may be given is not judged here. What is refused must be refused by a check of ours, in words of ours, and not by
whatever in Python, numpy or torch stumbles over the value first.
"""

import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dgcl
import dgcl.partition
import dgcl.relation
from dgcl.cli import main
from dgcl.ranks.context import context

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{(ROOT / folder).resolve()}/" for folder in ("dgcl", "planner", "topology", "kernels"))

WRONG: dict[str, Any] = {
    "nothing": None,
    "-1": -1,
    "2.5": 2.5,
    "nan": math.nan,
    "true": True,
    "text": "no such thing",
    "bytes": b"x",
    "list": [1],
    "empty": [],
    "mapping": {"a": 1},
    "an object": object(),
    "a function": lambda *_: None,
    "zeros": torch.zeros(3),
    "one number": torch.zeros(()),
    "complex": torch.zeros(20, 3, dtype=torch.complex64),
    "sparse": torch.zeros(20, 3).to_sparse(),
    "array": np.zeros((20, 20)),
    "array of text": np.array(["x"] * 20),
    "huge": 1 << 70,
}

EDGES = np.stack([np.arange(20), (np.arange(20) * 7 + 3) % 20])
GRAPH = dgcl.graph.as_graph(EDGES, 20)
PART = np.arange(20) // 10
RELATION = dgcl.planner.Relation.from_classes(4, [(0, {1, 2, 3}, 5), (1, {0}, 2)])
TOPOLOGY = dgcl.topology.preset("uniform4")
X, Y = torch.ones(20, 3), torch.zeros(20, dtype=torch.int64)


def launch(
    function: Any = int,
    num_ranks: Any = 1,
    ranks: Any = "threads",
    timeout: Any = 9.0,
    threads_per_rank: Any = None,
):
    dgcl.launch(function, num_ranks, ranks=ranks, timeout=timeout, threads_per_rank=threads_per_rank)


def offload_layer(
    module: Any = lambda g, src, dst: dst,
    x: Any = X,
    aggregate: Any = None,
    own_rows: Any = False,
    edge_weight: Any = None,
    constant: Any = False,
    keep: Any = "auto",
    parameters: Any = (),
):
    off = dgcl.Offload(context.communicator, chunks=2)
    options = {"own_rows": own_rows, "edge_weight": edge_weight, "constant": constant, "keep": keep}
    off.layer(module, x, aggregate=aggregate, parameters=parameters, **options)


def offload_loss(logits: Any, labels: Any, mask: Any = None):
    off = dgcl.Offload(context.communicator, chunks=2)
    off.accuracy(logits, labels, mask)
    off.cross_entropy(logits, labels, mask)


#: A call that is right, by its arguments in order; all arguments of the function are tried, those left out too.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "PlanOptions": (dgcl.PlanOptions, ()),
    "EdgePlacement": (dgcl.EdgePlacement, ()),
    "PartitionOptions": (dgcl.PartitionOptions, ()),
    "as_graph": (dgcl.graph.as_graph, (EDGES,)),
    "read_graph": (dgcl.graph.read_graph, ("graph.npz",)),
    "networkx_nodes": (dgcl.graph.networkx_nodes, ()),
    "partition_graph": (dgcl.partition.partition_graph, (GRAPH, 2)),
    "balance_weights": (dgcl.partition.balance_weights, (GRAPH, "edges", "metis")),
    "edge_files": (dgcl.partition.edge_files, ("parts",)),
    "check_part": (dgcl.partition.check_part, (PART, 20, 2)),
    "halo_classes": (dgcl.relation.halo_classes, (GRAPH, PART, 2)),
    "halo_demand": (dgcl.relation.halo_demand, (GRAPH, PART, 2)),
    "from_classes": (dgcl.planner.Relation.from_classes, (4, [(0, {1}, 5)])),
    "make_plan": (dgcl.planner.make_plan, (RELATION, TOPOLOGY, "direct")),
    "verify_plan": (dgcl.planner.verify_plan, ()),
    "check_plan_file": (dgcl.planner.check_plan_file, ()),
    "Plan.load": (dgcl.planner.Plan.load, ()),
    "preset": (dgcl.topology.preset, ("dgx1",)),
    "resolve_topology": (dgcl.topology.resolve_topology, ("uniform", 4)),
    "load_topology": (dgcl.topology.load_topology, ()),
    "launch": (launch, ()),
    "build_comm_info": (dgcl.build_comm_info, (GRAPH, "uniform")),
    "load_comm_info": (dgcl.load_comm_info, ("parts",)),
    "dispatch_features": (dgcl.dispatch_features, (X,)),
    "graph_allgather": (dgcl.graph_allgather, (X,)),
    "collect": (dgcl.collect, (X,)),
    "check_model": (dgcl.check_model, (nn.Linear(3, 3),)),
    "loss": (dgcl.nn.loss, (nn.functional.mse_loss,)),
    "accuracy": (dgcl.nn.accuracy, (X, Y)),
    "global_sum": (dgcl.nn.global_sum, (X,)),
    "dropout": (dgcl.nn.dropout, (X,)),
    "sync_gradients": (dgcl.nn.sync_gradients, (nn.Linear(3, 3),)),
    "broadcast_parameters": (dgcl.nn.broadcast_parameters, (nn.Linear(3, 3),)),
    "Offload.layer": (offload_layer, ()),
    "Offload.cross_entropy": (offload_loss, (X, Y)),
    "save_graph": (dgcl.graph.save_graph, ("saved.npz", GRAPH)),
    "save_topology": (dgcl.topology.save_topology, (TOPOLOGY, "topology.json")),
}

#: How an argument is called in messages, where by another name.
CALLED = {
    ("PartitionOptions", "method"): "partition",
    ("as_graph", "obj"): "graph|edge_index|torch tensor",
    ("check_part", "num_nodes"): "num_nodes|one entry per vertex",
    ("preset", "name"): "preset",
    ("preset", "num_devices"): "num_devices|devices",
    ("resolve_topology", "spec"): "topology",
    ("resolve_topology", "num_devices"): "num_devices|devices",
    ("global_sum", "x"): "tensor|x",
    ("collect", "rows"): "rows|node_type",
    ("Offload.layer", "module"): "module|give one row",
    ("Offload.cross_entropy", "logits"): "logits|rows",
    ("build_comm_info", "graph"): "graph|edge_index|torch tensor",
}


@pytest.fixture(scope="module", autouse=True)
def _communicator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("wrong_values"))
        dgcl.graph.save_graph("graph.npz", GRAPH)
        main(["partition", "graph.npz", "--ranks", "1", "--out", "parts/"])
        before = context.control, context.communicator
        dgcl.init()
        comm = dgcl.build_comm_info(GRAPH, "uniform")
        yield
        comm.close()
        context.control, context.communicator = before


def problem(name: str, argument: str, value: Any) -> str:
    """What is wrong with the answer to a wrong value; "" if nothing."""
    function, given = CALLS[name]
    names = [each for each in inspect.signature(function).parameters if each != "self"]
    arguments = {**dict(zip(names, given, strict=False)), argument: value}
    try:
        function(**arguments)
    except OSError:
        return ""  # of a file's name, which the system reads
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        words = CALLED.get((name, argument), argument).split("|")
        if not str(Path(last.filename).resolve()).startswith(OURS) or "raise" not in (last.line or ""):
            return f"{type(error).__name__} from {last.filename}:{last.lineno}: {error}"
        if not any(re.search(rf"\b{re.escape(word)}\b", str(error)) for word in words):
            return f"no {' or '.join(words)} in: {error}"
    return ""


def arguments_of(name: str) -> list[str]:
    """The names of a function's arguments that are tried."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(CALLS[name][0]).parameters.values()
    return [each.name for each in parameters if each.kind not in kinds]


@pytest.mark.sample(3, whole=True)
@pytest.mark.parametrize("name", CALLS)
def test_an_error_of_ours_names_the_argument(name: str):
    problems = [
        f"{argument}={label}: {found}"
        for argument in arguments_of(name)
        for label, value in WRONG.items()
        if (found := problem(name, argument, value))
    ]
    assert not problems, "\n".join(problems)
