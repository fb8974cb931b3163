"""The first call of a distributed model, and that of the model as it was, on one device with the whole graph.

Each rank puts the whole graph together from the arguments of the call, and runs copies of both models: nothing of the
program changes. The model as it was knows nothing of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from dgcl.frameworks.dispatch import collect_data, whole_ends
from dgcl.frameworks.edge_sets import edge_set_of
from dgcl.graph.typed import within
from dgcl.ranks.tensors import beside_the_graph
from dgcl.ranks.torch_private import tree_iter, tree_map_only
from dgcl.testing.equivalence import Run, differences, kept_outputs

if TYPE_CHECKING:
    from dgcl.communicator import Communicator

#: Vertices and edges of a graph that each rank holds whole.
LARGEST = 2_000_000


def compare_once(model: Module, comm: Communicator) -> None:
    """Let a distributed model's first call, which is collective, compare outputs and gradients with one device's.

    Dropout is off for that: modules are in evaluation, but those with running statistics. The call raises an
    AssertionError on every rank where they differ, and a ValueError where rows cannot be collected. Gradients are those
    of the outputs' rows, each times a random number.
    """
    pending = [model]

    def compare(model: Module, *arguments: Any) -> None:
        hook.remove()
        if pending:  # no copy of the model, which has the hook, too
            pending.clear()
            _compare(model, comm, arguments)

    hook = model.register_forward_pre_hook(beside_the_graph(compare), with_kwargs=True)


def _compare(model: Module, comm: Communicator, arguments: Any) -> None:
    if not comm.dispatched[1] or comm.num_nodes + comm.num_edges > LARGEST:
        raise ValueError(
            f"check=True runs a whole graph of dgcl.dispatch on each rank, of at most {LARGEST:,} vertices and edges"
            f" (got {comm.num_nodes:,} and {comm.num_edges:,}): check the model on a smaller one, and leave it out here"
        )
    comm.require_neighbourhoods("distribute(check=True)")
    ours, alone, device = copy.deepcopy(model), copy.deepcopy(model), comm.device.type
    for module in alone.modules():
        module.__class__ = getattr(module, "dgcl_base", type(module))
    for module in (*ours.modules(), *alone.modules()):
        module.training &= hasattr(module, "running_mean")
    with torch.random.fork_rng([comm.device] * (device == "cuda")):
        args, kwargs = tree_map_only(
            Tensor, lambda each: each.clone() if each.is_floating_point() else each, arguments
        )
        theirs, reference = kept_outputs(ours), kept_outputs(alone)
        outputs = ours(*args, **kwargs)
        alone.load_state_dict(ours.state_dict())  # lazy modules have made theirs
        args, kwargs = _whole(comm, arguments)
        results = alone(*args, **kwargs)
        factors = tree_map_only(Tensor, lambda each: torch.randn_like(each, dtype=torch.float64), outputs)
    expected = _tensors(results)
    types = [each.dtype for each in expected.values() if each.is_floating_point()]
    if torch.is_autocast_enabled(device):
        types.append(torch.get_autocast_dtype(device))
    limit = max(torch.finfo(each).eps for each in (torch.float64, *types)) ** 0.5

    def compare(expected: Any, measured: Any, limit: float, where: Callable[[], str] = str) -> None:
        for lines in comm.control.exchange(_differences(expected, measured, limit)):
            if lines:
                raise AssertionError(
                    f"the model gives other numbers on {comm.world_size} ranks than on one device, without dropout"
                    f" (tolerance {limit:.1g} of the largest value): {'; '.join(lines)}{where()}"
                )

    compare(expected, _tensors(_whole(comm, outputs)), limit, lambda: _where(comm, theirs, reference, limit))
    own, whole = _tensors(factors), _tensors(_whole(comm, factors))
    shares = comm.control.exchange(_gradients(ours, outputs, own, whole))
    gradients = _gradients(alone, results, whole, own)
    sums = {name: sum(each.get(name, 0 * value) for each in shares) for name, value in gradients.items()}
    compare(gradients, sums, limit**0.5)  # where rounding takes a ReLU past its kink a gradient jumps


def _where(comm: Communicator, measured: dict[str, Any], expected: dict[str, Any], limit: float) -> str:
    """The first module whose rows differ, for a message. Collective."""
    names, *others = comm.control.exchange([*measured])
    for name in names:
        if all(name in each for each in (expected, *others)):
            try:
                whole = _whole(comm, measured[name])
            except (TypeError, ValueError):
                continue  # rows of neither vertices nor edges
            lines = _differences(_tensors(expected[name]), _tensors(whole), limit)
            if any(comm.control.exchange(lines)):
                return f"; of its modules {name} differs first"
    return "; its modules do not differ: its own forward does"


def _gradients(model: Module, outputs: Any, factors: dict[str, Tensor], others: Any) -> dict[str, Tensor]:
    """Of its parameters, by the sum of outputs times factors; where ``others`` are the same, these are of no rows."""
    model.zero_grad()
    terms = [
        (each.double() * factors[name]).sum()
        for name, each in _tensors(outputs).items()
        if each.requires_grad and factors[name] is not others[name]
    ]
    if terms:
        torch.autograd.backward(terms)
    named = model.named_parameters()
    return {f"the gradient of {name}": each.grad.cpu() for name, each in named if each.grad is not None}


def _differences(expected: dict[str, Tensor], measured: dict[str, Tensor], limit: float) -> list[str]:
    one, many = (Run({}, {name: (each, False) for name, each in of.items()}) for of in (expected, measured))
    return differences(one, many, limit)


def _tensors(outputs: Any) -> dict[str, Tensor]:
    leaves = enumerate(tree_iter(outputs))
    return {f"output {place}": leaf for place, leaf in leaves if isinstance(leaf, Tensor)}


@torch.no_grad()
def _whole(comm: Communicator, value: Any, name: Any = None) -> Any:
    """A value with the rows of all ranks, where it has rows, and what is in it. Collective.

    Args:
        comm: The communicator.
        value: Tensors, graphs, and lists and dicts of them.
        name: The key of a dict under which it is, which may be a type of vertices or edges.

    Raises:
        ValueError: It is not known what it has rows of.
    """
    if isinstance(value, dict):
        return {key: _whole(comm, each, key) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_whole(comm, each, name) for each in value)
    if hasattr(value, "stores"):
        return collect_data(comm, value, None, None).to(comm.device)
    if type(value) is int and value == comm.num_owned:
        return comm.num_nodes
    if not isinstance(value, Tensor) or not value.dim():
        return value
    edges, places = edge_set_of(value), comm.dispatched[1]
    rows: Any = value
    if edges is not None:
        name = next((key for key in places["edges"][0] if "__".join(key) == edges.exchange), "")
        rows = whole_ends(comm, name).t()
    spaces = {
        (kind, key): (within(ids, *place), place[1])
        for kind, (types, ids) in places.items()
        for key, place in types.items()
    }
    fitting = [space for space, (ids, _) in spaces.items() if len(ids) == len(rows)]
    reports = comm.control.exchange(
        ({space for space in fitting if space[1] == name} or {*fitting}, value.shape)
    )
    common = set.intersection(*(spaces for spaces, _ in reports))
    if common:
        ids, number = spaces[max(common)]
        rows = comm._collect("collect", rows, None, None, ids, number)
        rows = rows.to(comm.device)
        return rows.requires_grad_(value.requires_grad) if edges is None else rows.t()
    if len({shape for _, shape in reports}) > 1:
        raise ValueError(
            "check=True takes rows of vertices and of edges, edge_index as dgcl.dispatch gave it, and what has one"
            f" shape on all ranks (got {[*value.shape]} on rank {comm.rank}): change edges before dgcl.dispatch"
        )
    return value
