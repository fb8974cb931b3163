"""Runs ``backward`` and ``torch.autograd.grad`` on all ranks at once, so that gradients are those of one device.

Each rank runs a copy of the program; differentiated is the mean of the copies' losses, 1/P of each for P ranks.
Collectives have their transposes as derivatives. So gradients of rows are complete on their owner; those of parameters
and of other tensors that every rank has are shares, which are summed over ranks when the backward ends, and added to
what was there. At backwards 1, 2, 4, ... ranks compare the leaves.
Called by `apply_rule` and `rule_table`. Free to change while accumulated, clipped and second-order gradients are those
of one device (`tests/dgcl/rows/test_programs.py`), and leaves that differ between ranks are named
(`tests/dgcl/rows/test_own_ranks.py`).
"""

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from dgcl.communicator import Communicator, given_or_current
from dgcl.errors import DisagreementError
from dgcl.nn.gradients import shard_of, summed_gradients
from dgcl.ranks.torch_private import hooks_of, run_backward, torch_function_on
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import State, fitting, state_of, total
from dgcl.rows.tensor import Rows, plain, replicated, rows, stored

_NAMES = {
    "grad": "outputs inputs grad_outputs retain_graph create_graph only_inputs allow_unused",
    "backward": "outputs grad_outputs retain_graph create_graph inputs",
}


def differentiate(call: Call) -> Any:
    """``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad``. Collective."""
    renamed = {
        "tensors": "outputs",
        "grad_tensors": "grad_outputs",
        "gradient": "grad_outputs",
        "self": "outputs",
    }
    call.kwargs = {renamed.get(key, key): each for key, each in call.kwargs.items()}
    names = _NAMES[call.name]
    arguments = dict(zip(names.split(), call.bound(names), strict=True))
    outputs, seeds = _listed(arguments["outputs"]), arguments["grad_outputs"]
    seeds = [None] * len(outputs) if seeds is None else _listed(seeds)
    rows_there = [each for each in (*outputs, call.first) if type(each) is Rows]
    comm = rows_there[0]._space.comm if rows_there else given_or_current(None)
    state = state_of(comm)
    state.depth += 1
    try:
        roots = tuple(map(stored, outputs))
        over = comm.world_size if state.depth == 1 else 1
        shares = tuple(_seed(*each, over) for each in zip(outputs, seeds, strict=True))
        create = bool(arguments["create_graph"])
        keep = create if arguments["retain_graph"] is None else arguments["retain_graph"]
        if call.name == "backward":
            _accumulate(roots, shares, arguments["inputs"], keep, create, comm, state)
            return None
        inputs, zeros = _listed(arguments["inputs"]), bool(call.kwargs.get("materialize_grads"))
        # No alias of a replicated value: its graph begins at this very tensor.
        leaves = tuple(each._local if type(each) is Rows else each for each in inputs)
        unused = zeros or bool(arguments["allow_unused"])
        with torch_function_on():
            grads = run_backward(roots, shares, keep, create, leaves, unused, accumulate_grad=False)
    finally:
        state.depth -= 1
    matches = [
        torch.zeros_like(leaf) if grad is None and zeros else grad
        for leaf, grad in zip(leaves, grads, strict=True)
    ]
    return tuple(_whole(each, grad, comm) for each, grad in zip(inputs, matches, strict=True))


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) else list(value)


def _whole(value: Any, grad: Tensor | None, comm: Communicator) -> Any:
    """A gradient as it is on one device: of rows rows, of others the sum of the shares."""
    if grad is None or type(value) is Rows:
        return None if grad is None else rows(grad, value._space, value._axis)
    return replicated(total(grad, comm, "gradients"))


def _seed(output: Any, seed: Any, over: int) -> Tensor:
    """The gradient with which a backward begins on this rank."""
    if seed is None and output.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    if seed is None:
        seed = torch.ones_like(stored(output))
    elif type(output) is Rows:
        seed = fitting(seed, output._space, output._axis - output.dim())
    return seed if type(output) is Rows else plain(seed) / over  # type: ignore[no-any-return]


def _leaves_of(roots: tuple[Tensor, ...]) -> list[Tensor]:
    """The leaves that a backward reaches, in the order in which it finds them."""
    matches = [each for each in roots if each.grad_fn is None and each.requires_grad]
    seen, to_do = set(), [each.grad_fn for each in reversed(roots)]
    while to_do:
        node = to_do.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            matches.append(node.variable)
        to_do.extend(each for each, _ in node.next_functions)
    return matches


def _of_models(reached: set[int], state: State) -> list[Tensor]:
    """The parameters of models of which some are reached: a rank may reach others, in another order, than its peers."""
    matches: list[Tensor] = []
    for model in state.models:
        parameters = [each for each in model.parameters() if each.requires_grad and not is_lazy(each)]
        if any(id(each) in reached for each in parameters):
            matches += parameters
    return matches


def _accumulate(
    roots: tuple[Tensor, ...],
    seeds: tuple[Tensor, ...],
    inputs: Any,
    keep: bool,
    create: bool,
    comm: Communicator,
    state: State,
) -> None:
    """``backward``: shares of leaves are summed over ranks once, and added to what their gradients held."""
    chosen = None if inputs is None else [stored(each) for each in _listed(inputs)]
    reached = _leaves_of(roots) if chosen is None else chosen
    ids = {id(each) for each in reached}
    leaves = [*(_of_models(ids, state) if chosen is None else ()), *reached, *state.shards]
    if state.depth == 1:
        state.met = {}
    for leaf in leaves:
        if hasattr(leaf, "dgcl_rows") or id(leaf) in state.met:
            continue
        if id(leaf) in ids and any(
            not (getattr(each, "__module__", "") or "").startswith("dgcl.") for each in hooks_of(leaf)
        ):
            raise ValueError(
                "a hook of a parameter would see this rank's share of its gradient, not the gradient: change gradients"
                " between backward and step (dgcl)"
            )
        state.met[id(leaf)] = leaf, leaf.grad
        leaf.grad = None
    try:
        with torch_function_on():  # what is computed again in it is seen
            torch.autograd.backward(roots, seeds, keep, create, inputs=chosen)
    except BaseException:
        for leaf, before in state.met.values():
            leaf.grad = before
        raise
    if state.depth == 1:
        met, state.met = state.met, {}
        # FSDP shows its shards again when a backward has ended: those of the first one are met only now.
        shards: list[Tensor] = [
            each for model in state.models for each in model.parameters() if hasattr(each, "device_mesh")
        ]
        state.shards = shards
        state.backwards += 1
        if not state.backwards & (state.backwards - 1):
            _compare([leaf for leaf, _ in met.values()], state, comm)
        _sum_shares({id(each): (each, None) for each in shards} | met, create, comm)


def _compare(leaves: list[Tensor], state: State, comm: Communicator) -> None:
    """Refuse leaves that ranks have made each for itself, at backwards 1, 2, 4, ... Collective.

    Raises:
        DisagreementError: On every rank, with the first one's name or shape.
    """
    names = {id(each): name for model in state.models for name, each in model.named_parameters()}
    whole = [each for each in leaves if not hasattr(each, "device_mesh")]
    sums = [
        zlib.crc32(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        for each in whole
    ]
    with comm.collective("leaves"):
        reports = comm.control.exchange(sums)
    for place, leaf in enumerate(whole):
        if any(theirs[place : place + 1] != sums[place : place + 1] for theirs in reports):
            what = names.get(id(leaf)) or f"a leaf of shape {tuple(leaf.shape)}"
            raise DisagreementError(
                f"{what} is not the same on all ranks, so each would train another model: make it with the same random"
                " numbers on each (after dgcl.dispatch), or before dgcl.distribute(model)"
            )


def _sum_shares(leaves: Mapping[int, tuple[Tensor, Tensor | None]], create: bool, comm: Communicator) -> None:
    """Put the sums over ranks of gradients in their place, beside what was there before."""
    sums = summed_gradients(
        (leaf for leaf, _ in leaves.values()), lambda flat: total(flat, comm, "gradients")
    )
    for leaf, value in sums:
        before = leaves[id(leaf)][1]
        if value is not None and hasattr(leaf, "device_mesh"):
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            shard_of(leaf.grad).copy_(value)
            value = leaf.grad
        if value is None:
            leaf.grad = before
        elif before is None:
            leaf.grad = value if create else value.clone()
        else:
            leaf.grad = before + value if create else before.add_(value)
