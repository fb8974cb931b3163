"""Gradients: one backward of all ranks' copies of a program, each with 1/P of the loss.

The objective is the mean of the losses of the copies. Each collective is differentiated by its transpose, so gradients of
rows are complete on their owner, and those of parameters and other tensors that every rank has are shares, which are
summed over ranks when the backward ends, and added to what was there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.sums import State, fitting, state_of, total
from dgcl.rows.tensor import Rows, plain, replicated, rows

_seen = torch._C._EnableTorchFunction  # type: ignore[attr-defined]


def differentiate(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Any) -> Any:
    """``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad``. Collective."""
    from dgcl.api import given_or_current

    outputs = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs or ())
    found = next((each for each in outputs if type(each) is Rows), first)
    comm = found._space.comm if type(found) is Rows else given_or_current(None)
    state = state_of(comm)
    place = 2 if name == "grad" else 1
    seeds = next(
        (kwargs[key] for key in ("grad_outputs", "gradient", "grad_tensors") if kwargs.get(key) is not None),
        args[place] if len(args) > place else None,
    )
    seeds = [None] * len(outputs) if seeds is None else [seeds] if isinstance(seeds, Tensor) else list(seeds)
    state.depth += 1
    try:
        roots, shares = [], []
        for output, seed in zip(outputs, seeds, strict=True):
            roots.append(output._local if type(output) is Rows else plain(output))
            shares.append(_seed(output, seed, comm.world_size if state.depth == 1 else 1))
        keep, create = kwargs.get("retain_graph"), bool(kwargs.get("create_graph", False))
        if name == "backward" and func is Tensor.backward:
            keep = args[2] if len(args) > 2 else keep
            create = bool(args[3]) if len(args) > 3 else create
        if name == "grad":
            inputs = args[1] if len(args) > 1 else kwargs["inputs"]
            keep = args[3] if len(args) > 3 else keep
            create = bool(args[4]) if len(args) > 4 else create
            return _gradients(
                roots, shares, inputs, keep, create, bool(kwargs.get("allow_unused")), kwargs, comm
            )
        _accumulate(roots, shares, kwargs.get("inputs"), keep, create, comm, state)
        return None
    finally:
        state.depth -= 1


def _seed(output: Any, seed: Any, over: int) -> Tensor:
    """The gradient with which a backward begins on this rank."""
    if type(output) is Rows:
        if seed is None and output.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if seed is None:
            return torch.ones_like(output._local)
        return fitting(seed, output._space, output._axis - output.dim())  # type: ignore[no-any-return]
    if seed is None:
        if output.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return torch.ones_like(plain(output)) / over
    seed = fitting(seed, seed._space, -seed.dim()) if type(seed) is Rows else plain(seed)
    return seed / over


def _gradients(
    roots: list[Tensor],
    seeds: list[Tensor],
    inputs: Any,
    keep: bool | None,
    create: bool,
    unused: bool,
    kwargs: dict[str, Any],
    comm: Any,
) -> tuple[Any, ...]:
    """What ``torch.autograd.grad`` gives: of rows rows, of others the sum of the shares."""
    from torch.autograd.graph import _engine_run_backward

    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    leaves = [each._local if type(each) is Rows else each for each in wanted]
    materialise = bool(kwargs.get("materialize_grads"))
    with _seen():
        found = _engine_run_backward(
            tuple(roots),
            tuple(seeds),
            create if keep is None else keep,
            create,
            tuple(leaves),
            unused or materialise,
            accumulate_grad=False,
        )
    out = []
    for each, leaf, grad in zip(wanted, leaves, found, strict=True):
        if grad is None and materialise:
            grad = torch.zeros_like(leaf)
        if grad is None:
            out.append(None)
        elif type(each) is Rows:
            out.append(rows(grad, each._space, each._axis))
        else:
            out.append(replicated(total(grad, comm, "gradients")))
    return tuple(out)


def leaves_of(roots: list[Tensor]) -> list[Tensor]:
    """The leaves that a backward reaches, in the order in which it finds them."""
    found = [each for each in roots if each.grad_fn is None and each.requires_grad]
    seen, to_do = set(), [each.grad_fn for each in reversed(roots)]
    while to_do:
        node = to_do.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        to_do.extend(each for each, _ in node.next_functions)
    return found


def _require_no_hook(leaf: Tensor) -> None:
    own = [*(leaf._backward_hooks or {}).values(), *(leaf._post_accumulate_grad_hooks or {}).values()]  # type: ignore[attr-defined]
    if any(not (getattr(each, "__module__", "") or "").startswith("dgcl.") for each in own):
        raise ValueError(
            "a hook of a parameter would see this rank's share of its gradient, not the gradient: change gradients between"
            " backward and step (dgcl)"
        )


def _accumulate(
    roots: list[Tensor],
    seeds: list[Tensor],
    inputs: Any,
    keep: bool | None,
    create: bool,
    comm: Any,
    state: State,
) -> None:
    """``backward``: shares of leaves are summed over ranks once, and added to what their gradients held."""
    chosen = None if inputs is None else [inputs] if isinstance(inputs, Tensor) else list(inputs)
    local = None if chosen is None else [each._local if type(each) is Rows else each for each in chosen]
    leaves = leaves_of(roots) if local is None else local
    shared = [each for each in leaves if not hasattr(each, "dgcl_rows")]
    for each in shared:
        _require_no_hook(each)
    if state.depth == 1:
        state.known, state.more = set(), []
    fresh = [each for each in shared if id(each) not in state.known]
    state.known |= {id(each) for each in fresh}
    state.more += [(each, each.grad) for each in fresh]
    for each in fresh:
        each.grad = None
    with _seen():  # what is computed again in it is seen
        torch.autograd.backward(roots, seeds, keep, create, inputs=local)
    if state.depth == 1:
        more, state.more = state.more, []
        _sum_shares(more, create, comm)


def _sum_shares(leaves: list[tuple[Tensor, Tensor | None]], create: bool, comm: Any) -> None:
    """Gradients of one dtype in one sum over ranks; 16-bit ones in float32."""
    groups: dict[Any, list[tuple[Tensor, Tensor | None]]] = {}
    for leaf, before in leaves:
        groups.setdefault((leaf.dtype, leaf.device), []).append((leaf, before))
    for (dtype, _), members in groups.items():
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        flat = [
            (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).reshape(-1).to(wide)
            for leaf, _ in members
        ]
        present = flat[0].new_tensor([leaf.grad is not None for leaf, _ in members])
        sums = total(torch.cat([*flat, present]), comm, "gradients")
        parts = sums.split([*(each.numel() for each in flat), len(members)])
        held = parts[-1].real > 0 if parts[-1].is_complex() else parts[-1] > 0
        for (leaf, before), part, some in zip(members, parts[:-1], held.tolist(), strict=True):
            if not some:
                leaf.grad = before
                continue
            value = part.view_as(leaf).to(dtype)
            if before is None:
                leaf.grad = value.clone() if not create else value
            elif create:
                leaf.grad = before + value
            else:
                leaf.grad = before.add_(value)
