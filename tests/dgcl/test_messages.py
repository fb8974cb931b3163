"""The likeliest mistakes, each made as a user makes it: what was expected, what came, and a way out are said."""

import importlib.util
import math
import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
from dgcl.ranks.context import context
from tests.support.samples import named

EDGES = torch.from_numpy(np.stack([np.arange(20), (np.arange(20) * 7 + 3) % 20]))
X = torch.arange(60.0).reshape(20, 3)
LABELS = torch.arange(20) % 3
PART = np.arange(20) // 10  # rank 1 owns the vertices 10 to 19


def build(**options: Any) -> dgcl.Communicator:
    return dgcl.build_comm_info(EDGES, "uniform", **{"part": PART, "timeout": 20.0, **options})


def outputs(comm: dgcl.Communicator) -> Tensor:
    return torch.zeros(comm.num_owned, 3, requires_grad=True)


def forward_mode_on_rank_0(comm: dgcl.Communicator):
    if comm.rank == 0:
        torch.func.jvp(dgcl.graph_allgather, (X[:10],), (X[:10],))


def loss(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    comm = build()
    return dgcl.nn.loss(F.cross_entropy)(
        outputs(comm), labels if len(labels) < 20 else comm_rows(labels), mask
    )


def comm_rows(whole: Tensor) -> Tensor:
    return dgcl.dispatch_features(whole)


def changed(index: int, value: int) -> Tensor:
    labels = LABELS.clone()
    labels[index] = value
    return labels


def graph(kind: str) -> Any:
    return build().local_graph(kind)


def uneven(shape: Callable[[int], Tensor]):
    comm = build()
    dgcl.graph_allgather(shape(comm.rank).new_zeros(comm.num_owned, *shape(comm.rank).shape))


def late():
    comm = build(timeout=0.3)
    if comm.rank == 0:
        dgcl.graph_allgather(torch.zeros(comm.num_owned, 3))
    else:
        comm.control.limit = math.inf  # it waits for the other
        comm.control.barrier()


def other_calls():
    comm = build()
    rows = torch.zeros(comm.num_owned, 3)
    if comm.rank == 0:
        dgcl.graph_allgather(rows)
    else:
        dgcl.collect(rows)


def closed():
    comm = build()
    comm.close()
    comm.expand(X[:10])


def other_models():
    comm = build()
    dgcl.nn.broadcast_parameters(nn.Linear(3, 3 + comm.rank))


def sums(name: str, dtype: torch.dtype):
    getattr(graph("csr"), name)(dgcl.graph_allgather(dgcl.dispatch_features(X.to(dtype))))


def normalise_slices(norm: nn.Module):
    comm = build(part=None, strategy="grid:1,1,2")
    norm(comm.slices(dgcl.dispatch_features(X[:, 1:])))


def dgl_layer(name: str, *sizes: Any, **options: Any):
    import dgl.nn

    block = graph("dgl")
    rows = dgcl.graph_allgather(dgcl.dispatch_features(X))
    getattr(dgl.nn, name)(*sizes, **options)(block, rows)


BLOCK = r"block of one hop: its sources are \d+ rows .owned . halo.*several hops.*runs on the graph of dgcl.dispatch"

#: What is done, what is said, and the kind of error.
MISTAKES: dict[str, tuple[Callable[[], object], str, type[BaseException]]] = {
    "a function before the communicator": (
        lambda: dgcl.graph_allgather(X),
        r"call dgcl.dispatch\(data\) or dgcl.build_comm_info\(graph\) first \(in every rank",
        ValueError,
    ),
    "no graph on rank 0": (
        lambda: dgcl.build_comm_info(None, "uniform"),
        r"graph must be given on rank 0 \(got None\)",
        ValueError,
    ),
    "edges in rows": (
        lambda: dgcl.build_comm_info(EDGES.T, "uniform"),
        r"must have shape \(2, E\), sources then destinations \(got \(20, 2\); transpose it\)",
        ValueError,
    ),
    "edges as floats": (
        lambda: dgcl.build_comm_info(EDGES.double(), "uniform"),
        r"must hold integers \(got torch.float64; convert with .long\(\)\)",
        TypeError,
    ),
    "a file that is not there": (
        lambda: dgcl.build_comm_info("nowhere.npz", "uniform"),
        "there is no file 'nowhere.npz' in /",
        OSError,
    ),
    "a topology's name": (
        lambda: dgcl.build_comm_info(EDGES, "dgx-1"),
        r"topology must be a preset \(dgx1, .*\) or the path of a JSON file \(got 'dgx-1'\).*mean 'dgx1'",
        ValueError,
    ),
    "a topology that is too small": (
        lambda: dgcl.build_comm_info(EDGES, "uniform:1"),
        "has 1 devices, too few for 2; use at most 1 ranks or a larger topology such as 'uniform:2'",
        ValueError,
    ),
    "a method's name": (
        lambda: build(method="derect"),
        "auto, optimal, direct, .* .got 'derect'.; did you mean 'direct'?",
        ValueError,
    ),
    "a partition as the method": (
        lambda: build(method="metis"),
        "got 'metis'.; 'metis' is a way to partition: partition='metis'",
        ValueError,
    ),
    "a partition's name": (
        lambda: build(partition="metes", part=None),
        "partition must be one of auto, metis, kaminpar, streaming, random, range .got 'metes'",
        ValueError,
    ),
    "a part vector of another graph": (
        lambda: build(part=PART[:-1]),
        r"part must have one entry per vertex, 20 \(got 19\)",
        ValueError,
    ),
    "parts counted from 1": (
        lambda: build(part=PART + 1),
        r"part\[10\] is 2: must be a part 0..1",
        ValueError,
    ),
    "a grid for other ranks": (
        lambda: build(strategy="grid:3,1,1", part=None),
        r"grid \(3,1,1\) is for .*3 ranks, and there are 2; .*\(2,1,1\)",
        ValueError,
    ),
    "a name of dgcl.nn": (
        lambda: dgcl.sync_gradients,
        "did you mean dgcl.nn.sync_gradients?",
        AttributeError,
    ),
    "another library's name": (
        lambda: dgcl.all_gather,
        "no attribute 'all_gather'; did you mean 'graph_allgather'?",
        AttributeError,
    ),
    "a GPU that is not there": (
        lambda: build(device="cuda"),
        r"device: cuda was asked for, but torch .* sees no CUDA device; use device='cpu'",
        ValueError,
    ),
    "features of some vertices": (
        lambda: (build(), dgcl.dispatch_features(X[:15])),
        r"features must have one row for each of the 20 vertices \(got shape \(15, 3\)\)",
        ValueError,
    ),
    "rows of the whole graph": (
        lambda: (build(), dgcl.graph_allgather(X)),
        r"rows must have num_owned = 10 rows on rank \d \(got shape \(20, 3\)\); dispatch_features gives",
        ValueError,
    ),
    "halo rows exchanged again": (
        lambda: (build(), dgcl.graph_allgather(dgcl.graph_allgather(dgcl.dispatch_features(X)))),
        "what graph_allgather gave goes into a layer",
        ValueError,
    ),
    "rows as numpy": (
        lambda: (build(), dgcl.graph_allgather(np.zeros((10, 3)))),
        r"rows must be a torch tensor \(got ndarray\)",
        TypeError,
    ),
    "other widths on the ranks": (
        lambda: uneven(lambda rank: torch.zeros(3 + rank)),
        r"different calls: rank \d is in call 1: .*\(width [34]\).*Every rank must make the same calls",
        dgcl.DisagreementError,
    ),
    "other types on the ranks": (
        lambda: uneven(lambda rank: torch.zeros(3, dtype=[torch.float32, torch.float64][rank])),
        r"different calls: .*torch.float(32|64).*Every rank must make the same calls with the same row shape",
        dgcl.DisagreementError,
    ),
    "a layer on one rank alone": (
        late,
        r"rank 0, expand .*waited 0.3 s in vain: .*missing from rank 1 \(it has not begun this call.*longer timeout",
        dgcl.CommTimeoutError,
    ),
    "other calls on the ranks": (
        other_calls,
        r"ranks make different calls: rank 1 is in collect .*rank 0 in graph_allgather.*Make each call on every rank",
        dgcl.DisagreementError,
    ),
    "a closed communicator": (
        closed,
        "this communicator is closed; build a new one with build_comm_info",
        ValueError,
    ),
    "a local graph's kind": (
        lambda: graph("networkx"),
        r"kind must be one of dgl, pyg, csr \(got 'networkx'\)",
        ValueError,
    ),
    "a sum over owned rows": (
        lambda: graph("csr").sum(X[:10]),
        r"the rows \[owned \| halo\]; apply dgcl.graph_allgather first \(got shape \(10, 3\)\)",
        ValueError,
    ),
    "a label beyond the classes": (
        lambda: loss(changed(17, 3)),
        r"labels must be classes 0..2, .*\(got 3 in row 7 of rank 1, vertex 17; 1 such labels .*ignore_index=-100",
        ValueError,
    ),
    "a label for unknown": (
        lambda: loss(changed(4, -1)),
        r"got -1 in row 4 of rank 0, vertex 4; .*leave rows out with mask=",
        ValueError,
    ),
    "labels as floats": (
        lambda: loss(LABELS.float()),
        r"labels must be int64 classes, or probabilities of shape \(10, 3\) \(got torch.float32.*call .long\(\)",
        ValueError,
    ),
    "labels as int32": (
        lambda: loss(LABELS.int()),
        r"labels must be int64 classes \(got torch.int32\); call .long\(\)",
        TypeError,
    ),
    "labels of the whole graph": (
        lambda: dgcl.nn.loss(F.cross_entropy)(outputs(build()), LABELS),
        r"labels must have a row for each of the 10 outputs \(got 20\): dispatch them with",
        ValueError,
    ),
    "scalars": (
        lambda: dgcl.nn.loss(F.mse_loss)(torch.ones(()), torch.ones(())),
        "outputs and labels must have rows .*count_once",
        ValueError,
    ),
    "a mask of numbers": (
        lambda: loss(LABELS, torch.ones(10)),
        r"mask must be bool with shape \(10,\), one for each output row \(got torch.float32, shape \(10,\)\)",
        ValueError,
    ),
    "other models on the ranks": (
        other_models,
        r"model must be the same on every rank: weight is \(\d, 3\) on rank \d and \(\d, 3\) on rank 0",
        ValueError,
    ),
    "parts that were not written": (
        lambda: dgcl.load_comm_info("/nowhere/parts"),
        r"rank-00000.part is missing, and this job has 2 ranks; .*dgcl partition GRAPH --ranks P --out DIR/",
        ValueError,
    ),
    "edge data of some edges": (
        lambda: build().dispatch_edges(torch.ones(7)),
        r"values must have one row for each of the 20 edges \(got shape \(7,\)\)",
        ValueError,
    ),
    "another's communicator": (
        lambda: (build(), dgcl.graph_allgather(X[:10], 3)),  # type: ignore[arg-type]
        r"comm must be a dgcl.Communicator, or None for the current one \(got int\)",
        TypeError,
    ),
    "chunks of no communicator": (
        lambda: dgcl.Offload(3, chunks=2),  # type: ignore[arg-type]
        r"comm must be a dgcl.Communicator \(got int\)",
        TypeError,
    ),
    "a deadline in words": (
        lambda: build(timeout="60"),
        r"timeout must be a positive number of seconds \(got '60'\)",
        ValueError,
    ),
    "a deadline that is over, of parts": (
        lambda: dgcl.load_comm_info("/nowhere/parts", timeout=-1),
        r"timeout must be a positive number of seconds \(got -1\)",
        ValueError,
    ),
    "parts of nothing": (
        lambda: dgcl.load_comm_info(None),  # type: ignore[arg-type]
        r"parts must be the path of a folder \(got NoneType\)",
        ValueError,
    ),
    "a part vector's file": (
        lambda: build(part="part.npy"),
        r"part must hold integers \(got the path 'part.npy'; np.load reads a .npy file\)",
        TypeError,
    ),
    "a placement's name": (
        lambda: build(strategy="heads"),
        r"strategy must be one of halo, tail, cover.*\(got 'heads'\)",
        ValueError,
    ),
    "a graph as features": (
        lambda: (build(), dgcl.dispatch_features({"x": X})),  # type: ignore[arg-type]
        r"features must be a tensor or an array, such as data.x \(got dict\)",
        ValueError,
    ),
    "no features at all": (
        lambda: (build(), dgcl.dispatch_features([])),
        r"features must have one row for each of the 20 vertices \(got shape \(0,\)\)",
        ValueError,
    ),
    "results in a folder that is not there": (
        lambda: dgcl.collect(outputs(build()), file="/nowhere/rows.npy"),
        r"^file: cannot write /nowhere/rows.npy: No such file or directory\n",
        ValueError,
    ),
    "results for another rank on each": (
        lambda: dgcl.collect(outputs(build()), dst=dgcl.current_communicator().rank),
        r"dst must be the same on every rank \(got 0 on rank 0 and 1 on rank 1\)",
        ValueError,
    ),
    "integers in batches": (
        lambda: (build(), dgcl.nn.BatchNorm(3)(X[:10].long())),
        r"x must be floating point \(got torch.int64\); convert it first",
        TypeError,
    ),
    "labels as numpy": (
        lambda: dgcl.nn.loss(F.cross_entropy)(outputs(build()), LABELS[:10].numpy()),  # type: ignore[arg-type]
        r"targets must be a torch tensor \(got ndarray\); torch.as_tensor makes one",
        TypeError,
    ),
    "a mask as numpy": (
        lambda: dgcl.nn.accuracy(outputs(build()), LABELS[:10], np.ones(10, bool)),  # type: ignore[arg-type]
        r"mask must be a torch tensor \(got ndarray\)",
        TypeError,
    ),
    "a sum over ranks of a number": (
        lambda: (build(), dgcl.nn.global_sum(3.0)),  # type: ignore[arg-type]
        r"x must be a torch tensor \(got float\)",
        TypeError,
    ),
    "gradients of a state": (
        lambda: (build(), dgcl.nn.sync_gradients(nn.Linear(3, 3).state_dict())),  # type: ignore[arg-type]
        r"model must be a torch.nn.Module, or a list of its parameters \(got str\)",
        TypeError,
    ),
    "parameters of a list": (
        lambda: (build(), dgcl.nn.broadcast_parameters([nn.Linear(3, 3)])),  # type: ignore[arg-type]
        r"model must be a torch.nn.Module \(got list\)",
        TypeError,
    ),
    "a model's state for the communicator's": (
        lambda: build().load_state_dict({"weight": 1}),
        r"state must be what comm.state_dict\(\) gave \(got \{'weight': 1\}\)",
        ValueError,
    ),
    "slices of numpy": (
        lambda: build(part=None, strategy="grid:1,1,2").slices(np.zeros((10, 2))),  # type: ignore[arg-type]
        r"x must be a torch tensor \(got ndarray\); torch.as_tensor makes one",
        TypeError,
    ),
    "a sum over ranks of numpy": (
        lambda: build().all_reduce_sum(np.zeros(3)),  # type: ignore[arg-type]
        r"tensor must be a torch tensor \(got ndarray\); torch.as_tensor makes one",
        TypeError,
    ),
    "dropout as text": (
        lambda: dgcl.nn.Dropout("x"),  # type: ignore[arg-type]
        r"p must be a probability in \[0, 1\] \(got 'x'\)",
        ValueError,
    ),
    "columns as text": (
        lambda: dgcl.nn.GCNConv("4", 3),  # type: ignore[arg-type]
        r"in_channels must be an integer >= 0 \(got '4'\)",
        TypeError,
    ),
    "columns of both ends": (
        lambda: dgcl.nn.SAGEConv(4, (3, 3), "max"),  # type: ignore[arg-type]
        r"out_channels must be an integer >= 0 \(got \(3, 3\)\)",
        TypeError,
    ),
    "a derivative in forward mode": (
        lambda: forward_mode_on_rank_0(
            build()
        ),  # levels of forward mode are shared by the threads of a process
        r"no derivative in forward mode \(torch.func.jvp\); differentiate backwards",
        NotImplementedError,
    ),
    "integers summed over edges": (
        lambda: sums("sum", torch.long),
        r"x_all must be rows of floats or complex numbers \(got torch.int64\); convert them first",
        TypeError,
    ),
    "complex weights of real rows": (
        lambda: graph("csr").sum(
            dgcl.graph_allgather(dgcl.dispatch_features(X)),
            dgcl.current_communicator().dispatch_edges(torch.ones(20, dtype=torch.complex64)),
        ),
        r"edge_weight must be real, as x_all is \(got torch.complex64 and torch.float32\)",
        TypeError,
    ),
    "rows as numpy over edges": (
        lambda: graph("csr").mean(np.zeros((20, 3))),
        r"x_all must be a torch tensor \(got ndarray\)",
        TypeError,
    ),
    "booleans averaged over edges": (
        lambda: sums("mean", torch.bool),
        r"x_all must be rows of floats or complex numbers \(got torch.bool\); convert them first",
        TypeError,
    ),
    "slices normalised": (
        lambda: normalise_slices(dgcl.nn.BatchNorm(1)),
        "on a grid before comm.slices or after comm.rows",
        ValueError,
    ),
    "a model for a communicator": (
        lambda: (build(), dgcl.check_model(nn.Linear(3, 3), 3)),  # type: ignore[arg-type]
        r"comm must be a dgcl.Communicator, or None for the current one \(got int\)",
        TypeError,
    ),
    "a graph for a loss's communicator": (
        lambda: dgcl.nn.loss(F.mse_loss, comm=EDGES)(outputs(build()), X[:10]),  # type: ignore[arg-type]
        r"comm must be a dgcl.Communicator, which has the edges \(got a tensor\)",
        TypeError,
    ),
    "rows as numpy in batches": (
        lambda: (build(), dgcl.nn.BatchNorm(3)(np.zeros((10, 3)))),  # type: ignore[arg-type]
        r"x must be a torch tensor \(got ndarray\); torch.as_tensor makes one",
        TypeError,
    ),
    "rows of another width in a convolution": (
        lambda: (build(), dgcl.nn.SAGEConv(4, 2)(X[:10])),
        r"x must have in_channels = 4 columns, \(num_owned, 4\) \(got shape \(10, 3\)\)",
        ValueError,
    ),
    "integers in a convolution": (
        lambda: (build(), dgcl.nn.GCNConv(3, 2)(X[:10].long())),
        r"x must be of the parameters' type, torch.float32 \(got torch.int64\)",
        TypeError,
    ),
    "rows of another width in batches": (
        lambda: (build(), dgcl.nn.BatchNorm(4)(X[:10])),
        r"x must have shape \(num_owned, 4\) .*\(got \(10, 3\)\)",
        ValueError,
    ),
    "one parameter's gradients": (
        lambda: (build(), dgcl.nn.sync_gradients(nn.Linear(3, 3).weight)),
        r"model must be a torch.nn.Module, or a list of its parameters \(got Parameter\)",
        TypeError,
    ),
    "gradients of numbers": (
        lambda: (build(), dgcl.nn.sync_gradients([1.0])),  # type: ignore[list-item]
        r"model must be a torch.nn.Module, or a list of its parameters \(got float\)",
        TypeError,
    ),
    "parameters of a rank as text": (
        lambda: (build(), dgcl.nn.broadcast_parameters(nn.Linear(3, 3), src="0")),  # type: ignore[arg-type]
        r"src must be an integer from 0 to 1 \(got '0'\)",
        TypeError,
    ),
    "labels in a column": (
        lambda: loss(LABELS[:10, None]),
        r"outputs must have shape .*labels \(num_owned, \*F\) \(got \(10, 3\) and \(10, 1\)\)",
        ValueError,
    ),
    "outputs as integers": (
        lambda: (build(), dgcl.nn.loss(F.cross_entropy)(X[:10].long(), LABELS[:10])),
        r"outputs must be floating point \(got torch.int64\)",
        TypeError,
    ),
    "owned rows in a PyG layer": (
        lambda: graph("pyg").pair(X[:10]),
        r"x_all must hold the \d+ rows \[owned \| halo\] \(got 10\): apply dgcl.graph_allgather",
        ValueError,
    ),
}

#: The same for layers of DGL, where it is installed.
LAYERS: dict[str, tuple[Callable[[], object], str]] = {
    "TAGConv": (lambda: dgl_layer("TAGConv", 3, 3, k=2), BLOCK),
    "SGConv": (lambda: dgl_layer("SGConv", 3, 3, k=2), BLOCK),
    "APPNPConv": (lambda: dgl_layer("APPNPConv", 2, 0.1), BLOCK),
    "ChebConv": (lambda: dgl_layer("ChebConv", 3, 3, k=3), BLOCK),
    "GatedGraphConv": (lambda: dgl_layer("GatedGraphConv", 3, 3, n_steps=2, n_etypes=1), BLOCK),
    "a wrong width stays the layer's own": (
        lambda: dgl_layer("GraphConv", 4, 4),
        "^mat1 and mat2 shapes cannot be multiplied",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_said(mistake: str):
    make, said, kind = MISTAKES[mistake]
    if mistake == "a GPU that is not there" and torch.cuda.is_available():
        pytest.skip("there is one")
    if mistake == "owned rows in a PyG layer":
        pytest.importorskip("torch_geometric")
    with pytest.raises(kind, match=re.compile(said, re.DOTALL)):
        dgcl.launch(make, 2)


@pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_several_hops_on_a_block(layer: str):
    make, said = LAYERS[layer]
    with pytest.raises(Exception, match=re.compile(said, re.DOTALL)):
        dgcl.launch(make, 2)


@named(
    "function, num_ranks, said",
    {
        "no-function": (3, 2, r"function must be callable \(got int\)"),
        "ranks-as-text": (int, "2", r"num_ranks must be an integer >= 1 \(got '2'\)"),
    },
)
def test_launch_of_something_else(function: Any, num_ranks: Any, said: str):
    with pytest.raises(TypeError, match=said):
        dgcl.launch(function, num_ranks)


def test_one_suggestion_for_a_name():
    with pytest.raises(AttributeError) as caught:
        _ = dgcl.Graph
    shown = "".join(traceback.format_exception_only(caught.value))
    assert "did you mean 'graph'?" in shown
    assert shown.lower().count("did you mean") == 1


def test_before_init(monkeypatch):
    monkeypatch.setattr(context, "control", None)  # tests before this one may have begun
    with pytest.raises(ValueError, match=r"call dgcl.init\(\) first"):
        dgcl.build_comm_info(EDGES)


def test_describe_tells_plan_and_channels():
    def describe() -> tuple[str, dgcl.planner.Plan]:
        comm = dgcl.build_comm_info(EDGES, "uniform", part=PART, method="spst")
        return comm.describe(), comm.plan

    for rank, (text, plan) in enumerate(dgcl.launch(describe, 2)):
        first, *channels = text.splitlines()
        assert first.startswith(f"rank {rank} of 2; spst plan in {plan.num_stages} stage")
        assert re.search(
            r", \d+ relay rows here; predicted .*s for rows of 512 bytes on uniform2, bound .*s as the plan states",
            first,
        )
        assert len(channels) == 1
        assert "shared memory" in channels[0]
