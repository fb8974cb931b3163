"""What a rank computes on the CPU by shared memory and on the pretended device by collectives."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.communicator import Communicator
from dgcl.transport.common.program_agreement import connect_peers
from dgcl.transport.connect import connect_collective

NUM_NODES = 120
_generator = np.random.default_rng(3)
EDGES = torch.from_numpy(_generator.integers(0, NUM_NODES, (2, 900)))
FEATURES = torch.from_numpy(_generator.standard_normal((NUM_NODES, 12)))
LABELS = torch.from_numpy(_generator.integers(0, 5, NUM_NODES))
MASK = torch.from_numpy(_generator.random(NUM_NODES) < 0.5)

Feature = Callable[[Communicator], list[Tensor]]


def _leaf(comm: Communicator) -> Tensor:
    return comm.dispatch_features(FEATURES).detach().requires_grad_()


def _differentiated(y: Tensor, *leaves: Tensor) -> list[Tensor]:
    (y * y).sum().backward()
    return [y, *(leaf.grad for leaf in leaves)]


def verbs(comm: Communicator) -> list[Tensor]:
    x = _leaf(comm)
    return _differentiated(dgcl.graph_allgather(x), x)


def started(comm: Communicator) -> list[Tensor]:
    x = _leaf(comm)
    return _differentiated(dgcl.graph_allgather_async(x).wait(), x)


def halo_fold(comm: Communicator) -> list[Tensor]:
    into = comm.dispatch_features(FEATURES.to(torch.bfloat16))
    rows = comm.expand(into)[comm.num_owned :]
    return [comm.fold_halo(rows, into)]


def csr(comm: Communicator) -> list[Tensor]:
    x, graph = _leaf(comm), comm.local_graph("csr").to(comm.device)
    return _differentiated(graph.sum(dgcl.graph_allgather(x)), x)


def aggregate(reduce: Any, weight: str = "", **options: Any) -> Feature:
    def run(comm: Communicator) -> list[Tensor]:
        x = _leaf(comm)
        if not weight:
            return _differentiated(comm.aggregator(reduce, **options)(x), x)
        drawn = comm.dispatch_edges(torch.arange(900) % 37 / 37.0)
        given = drawn.to(comm.device).requires_grad_(weight == "learned")
        learned = [given] if weight == "learned" else []
        return _differentiated(comm.aggregator(reduce, edge_weight=given, **options)(x), x, *learned)

    return run


def repeatable(feature: Feature) -> Feature:
    """By algorithms that give the same bits each time."""

    def run(comm: Communicator) -> list[Tensor]:
        torch.use_deterministic_algorithms(True)
        try:
            return feature(comm)
        finally:
            torch.use_deterministic_algorithms(False)

    return run


def ties(reduce: Any) -> Feature:
    def run(comm: Communicator) -> list[Tensor]:
        x = comm.dispatch_features((FEATURES > 0).to(torch.float16))
        x.masked_fill_(comm.dispatch_features(MASK[:, None]), torch.nan if reduce == "max" else torch.inf)
        x.requires_grad_()
        columns = x[:, :1], x[:, 1:2], x[:, 2:]
        y = torch.cat([comm.aggregator(reduce)(each) for each in columns], 1)
        grad = torch.arange(y.numel(), dtype=torch.float64).to(comm.device).reshape(y.shape).to(y.dtype)
        y.backward(grad / 64)
        return [torch.nan_to_num(y), x.grad]

    return run


def offload(aggregate: Any = None, **options: Any) -> Feature:
    """With an aggregate, of the linear layer; else of a function, to a loss."""

    def run(comm: Communicator) -> list[Tensor]:
        linear = nn.Linear(12, 5).double()
        if comm.device.type != "cpu":
            _move(linear, comm.device)

        def layer(graph: Any, rows: Tensor, own: Tensor) -> Tensor:
            return linear(graph.sum(rows) + own)

        with contextlib.closing(dgcl.Offload(comm, chunks=3)) as off:
            x = off.dispatch_features(FEATURES).requires_grad_()
            if aggregate is None:
                y = off.layer(layer, x, parameters=linear.parameters())
                labels, mask = (comm.dispatch_features(each[:, None])[:, 0] for each in (LABELS, MASK))
                off.cross_entropy(y, labels, mask).backward()
            else:
                weight = comm.dispatch_edges(torch.arange(900) / 900.0)
                y = off.layer(linear, x, aggregate=aggregate, edge_weight=weight, **options)
                _differentiated(y)
            rows = [y.detach(), x.grad]
            return [each.in_owned_order().to(comm.device) for each in rows] + [linear.weight.grad]

    return run


def train(layer: str, *between: Callable[[], nn.Module]) -> Feature:
    def run(comm: Communicator) -> list[Tensor]:
        x = comm.dispatch_features(FEATURES)
        labels, mask = (comm.dispatch_features(each[:, None])[:, 0] for each in (LABELS, MASK))
        torch.manual_seed(0)
        first, second = (getattr(dgcl.nn, layer)(*widths).double() for widths in ((12, 8), (8, 5)))
        modules = nn.ModuleList([first, *(make().double() for make in between), second])
        if comm.device.type != "cpu":
            _move(modules, comm.device)
        parameters, losses = (
            [p for module in modules.modules() for p in module._parameters.values() if p is not None],
            [],
        )
        for _ in range(3):
            h = x
            for module in modules:
                h = module(h) if module is not first else torch.relu(module(h))
            loss = dgcl.nn.loss(F.cross_entropy)(h, labels, mask=mask)
            loss.backward()
            dgcl.nn.sync_gradients(parameters)
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= 0.05 * parameter.grad
                    parameter.grad = None
            losses.append(loss.detach().reshape(1))
        return losses + parameters

    return run


def _move(modules: nn.Module, device: torch.device):
    for module in modules.modules():
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is not None:
                    held[name] = value.detach().to(device).requires_grad_(value.requires_grad)


#: By name: what is computed, and how the communicator is built.
FEATURES_BY_NAME: dict[str, tuple[Feature, dict[str, Any]]] = {
    "verbs": (verbs, {}),
    "started": (started, {}),
    "halo fold": (halo_fold, {}),
    "csr": (csr, {}),
    **{
        f"{reduce}, {edges}": (aggregate(reduce), {"strategy": edges})
        for edges in ("halo", "tail", "cover")
        for reduce in ("sum", "mean", "max")
    },
    "min, ties": (ties("min"), {"strategy": "tail"}),
    "max, ties": (ties("max"), {"strategy": "grid:3d"}),
    "constant weights": (aggregate("sum", "constant"), {"strategy": "cover"}),
    "learned weights": (aggregate("sum", "learned"), {"strategy": "cover"}),
    "learned weights, repeatable": (repeatable(aggregate("sum", "learned")), {"strategy": "cover"}),
    "windows": (aggregate("sum", windows=3), {}),
    **{f"grid {grid}": (aggregate("sum"), {"strategy": f"grid:{grid}"}) for grid in ("1.5d", "2d", "3d")},
    "offload": (offload(), {}),
    "offload, kept sums": (offload("sum", keep=True), {}),
    "offload, means again": (offload("mean", keep=False), {}),
    "GCN": (train("GCNConv"), {}),
    "SAGE": (train("SAGEConv"), {}),
    "GCN, batch norm, dropout": (
        train("GCNConv", lambda: dgcl.nn.BatchNorm(8), lambda: dgcl.nn.Dropout(0.3)),
        {},
    ),
}


def _unwatched(post: Callable[..., Any]) -> Callable[..., Any]:
    """A wire's, whose host waits for the rows that it copies."""
    from tests.dgcl.pretended.device import host_waits

    def posted(*args: Any) -> Any:
        before = set(host_waits)
        work = post(*args)
        host_waits.intersection_update(before)
        return work

    return posted


@contextlib.contextmanager
def pretended(comm: Communicator) -> Iterator[None]:
    """Within this a communicator of the CPU computes on the pretended device."""
    from tests.dgcl.pretended.device import DEVICE, Pretend

    with Pretend():
        programs = {name: exchange.program for name, exchange in comm.exchanges.items()}
        peers = connect_peers(programs, comm.control, "collective")
        transport = connect_collective(programs, peers, 60.0, DEVICE, "pretended")
        transport.wire.post = _unwatched(transport.wire.post)
        comm.use_transport(transport)
        comm.device = DEVICE
        yield


def compare(name: str) -> tuple[str, tuple[str, ...]]:
    """How far this rank's results on the pretended device are from those on the CPU; and for what the host waited."""
    from tests.dgcl.pretended.device import OnDevice, host_waits, on_host

    feature, options = FEATURES_BY_NAME[name]
    host_waits.clear()
    expected = computed(feature, options)
    results = computed(feature, options, pretended)
    assert all(isinstance(each, OnDevice) for each in results), [type(each) for each in results]
    return closeness([on_host(each) for each in results], expected), tuple(sorted(host_waits))


def compare_on_device(name: str, channel: str, device: str = "cuda") -> str:
    """How far this rank's results on a device are from those on the CPU; or how it was refused."""
    feature, options = FEATURES_BY_NAME[name]
    expected = computed(feature, options)
    try:
        results = computed(feature, options | {"device": device, "channel": channel})
    except ValueError as error:
        if "whole calls" not in str(error):
            raise
        return "refused"
    return closeness([each.cpu() for each in results], expected)


def computed(feature: Feature, options: dict[str, Any], within: Any = contextlib.nullcontext) -> list[Tensor]:
    """What a communicator with these options computes."""
    with contextlib.closing(dgcl.build_comm_info(EDGES, "uniform", **options)) as comm, within(comm):
        torch.manual_seed(0)
        return [each.detach() for each in feature(comm)]


def closeness(results: list[Tensor], expected: list[Tensor]) -> str:
    """How far results are from what is expected."""
    pairs = list(zip(results, expected, strict=True))
    if all(torch.equal(*pair) for pair in pairs):
        return "same bits"
    close = all(torch.allclose(*(each.double() for each in pair), rtol=1e-10, atol=1e-12) for pair in pairs)
    return "close" if close else "wrong"
