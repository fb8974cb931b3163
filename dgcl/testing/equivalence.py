"""One model, on one device and on many ranks: outputs of every module, gradients and several steps must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

import dgcl
from dgcl.graph import as_graph

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dgcl.communicator import Communicator


_LONGEST = 12  # lines of a report


class Computed(NamedTuple):
    """A tensor of a run: whether it has a row for each vertex, or is a gradient."""

    value: Tensor | None
    of_rows: bool = False
    is_gradient: bool = False


#: What a run computed, by name, in its order.
Run = dict[str, Computed]


def assert_equivalent(
    model_fn: Callable[[Communicator], Module],
    graph: Any,
    features: Tensor | ArrayLike,
    ranks: int = 4,
    *,
    alone: Callable[[], Module] | None = None,
    steps: int = 3,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Assert that a model computes and learns on several ranks what it does on one device.

        >>> def model_fn(comm):
        ...     return MyModel(comm.local_graph("csr"), 32, 7)
        >>> dgcl.testing.assert_equivalent(model_fn, graph, features, ranks=4)

    Ranks are threads of this process. Both sides begin with the same parameters and take ``steps`` steps of gradient
    descent towards random targets. Compared are, in this order: what each module returns for its first rows, in the
    order in which modules run, the output, the loss, the gradients, and so on for each step.

    Args:
        model_fn: Makes a new model for this rank's communicator; called on each rank. The model takes this rank's
            rows of ``features``, ``(num_owned, *F)``, and returns ``(num_owned, *G)``.
        graph: As for :func:`dgcl.build_comm_info`.
        features: ``(num_nodes, *F)`` of all vertices.
        ranks: How many.
        alone: Makes the model for one device, without dgcl, which takes and returns rows of all vertices and has
            parameters of the same names; None: ``model_fn`` on a single rank.
        steps: How many.
        dtype: Of parameters and features. What is wrong shows best in float64.
        tolerance: Of differences, relative to the largest value of a tensor, or of all gradients; None: 1e-9 in
            float64, else 1e-3.
        options: For :func:`dgcl.build_comm_info`: ``part``, ``topology``, ...

    Raises:
        AssertionError: What differs, where and by how much, the first in the order of computation first.
        ValueError, TypeError: ``model_fn`` makes no new model in each call, or models that are not comparable.
    """
    if ranks < 1 or steps < 1:
        raise ValueError(f"ranks and steps must be at least 1 (got {ranks} and {steps})")
    if isinstance(model_fn, Module):
        raise TypeError("model_fn must be a function that makes a model from a communicator (got a model)")
    graph = as_graph(graph)
    x = torch.as_tensor(features).detach().to("cpu", dtype)
    if x.dim() == 0 or len(x) != graph.num_nodes:
        raise ValueError(
            f"features must have one row for each of the {graph.num_nodes} vertices (got shape {tuple(x.shape)})"
        )
    models: list[Module] = []  # all are kept, so that no two have the same id

    def one_device() -> tuple[dict[str, Tensor], Run]:
        comm = dgcl.build_comm_info(graph)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the ranks take these parameters
            model = _new(model_fn(comm) if alone is None else alone(), models).to(dtype)
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        return state, _train(comm, model, x, steps)

    def many(state: dict[str, Tensor]) -> tuple[Run, Tensor]:
        comm = dgcl.build_comm_info(graph, **options)
        model = _new(model_fn(comm), models).to(dtype)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(
                f"the models of ranks and of one device must have the same parameters: {error}"
            ) from None
        return _train(comm, model, x, steps), comm.part

    ((state, expected),) = dgcl.launch(one_device, 1)
    measured, part = dgcl.launch(many, ranks, state)[0]
    limit = tolerance if tolerance is not None else (1e-9 if dtype == torch.float64 else 1e-3)
    lines = differences(expected, measured, part, limit)
    if lines:
        more = [f"... and {len(lines) - _LONGEST} more"] * (len(lines) > _LONGEST)
        raise AssertionError(
            f"the model gives other numbers on {ranks} ranks than on one device (tolerance {limit:g} of the largest"
            " value); what is computed first comes first (dgcl.check_model names modules that are known for it):\n  "
            + "\n  ".join([*lines[:_LONGEST], *more])
        )


def _new(model: Any, models: list[Module]) -> Module:
    if not isinstance(model, Module):
        raise TypeError(f"model_fn must return a torch.nn.Module (got {type(model).__name__})")
    if any(model is other for other in models):
        raise ValueError(
            "model_fn must make a new model in each call: ranks that share one train it at the same time"
        )
    models.append(model)
    return model


def _train(comm: Communicator, model: Module, x_all: Tensor, steps: int) -> Run:
    """Several steps; rows are collected on rank 0. Collective."""
    run: Run = {}
    x = x_all[comm.owned_ids]
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.1), kept_outputs(model)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        kept.clear()
        out = model(x)
        for name, rows in _owned_rows(kept, comm):
            run[f"step {step}: {name}"] = Computed(comm.collect(rows), of_rows=True)
        run[f"step {step}: the output"] = Computed(comm.collect(out.detach()), of_rows=True)
        shape = (comm.num_nodes, *out.shape[1:])
        targets = torch.randn(shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        loss = dgcl.nn.loss(F.mse_loss, comm=comm)(out, targets.to(out.dtype)[comm.owned_ids])
        run[f"step {step}: the loss"] = Computed(loss.detach())
        loss.backward()
        dgcl.nn.sync_gradients(model, comm=comm)
        for name, parameter in model.named_parameters():
            gradient = None if parameter.grad is None else parameter.grad.clone()
            run[f"step {step}: the gradient of {name}"] = Computed(gradient, is_gradient=True)
        optimizer.step()
    return run


def kept_outputs(model: Module) -> dict[str, Tensor]:
    """Tensors that modules within a model return from now on, by name and call, in the order in which calls end."""
    kept: dict[str, Tensor] = {}

    def keep(name: str, module: Module, inputs: Any, output: Any) -> None:
        calls, key = 1, name
        while key in kept:
            calls += 1
            key = f"{name}, call {calls}"
        if isinstance(output, Tensor):
            kept[key] = output.detach().clone()

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(partial(keep, name))
    return kept


def _owned_rows(kept: dict[str, Tensor], comm: Communicator) -> Iterator[tuple[str, Tensor]]:
    """Outputs that have rows of vertices on every rank. Collective."""
    sizes = comm.num_owned, comm.num_local
    rows = {name: each for name, each in kept.items() if each.dim() and len(each) in sizes}
    reports = comm.control.exchange({name: each.shape[1:] for name, each in rows.items()})
    for name, each in rows.items():
        if all(shapes.get(name) == each.shape[1:] for shapes in reports):
            yield name, each[: comm.num_owned]


def differences(expected: Run, measured: Run, part: Tensor, tolerance: float) -> list[str]:
    """A line for each tensor that differs, in the order of computation on one device; ``part`` has owners of rows."""
    lines = []
    # A gradient that is zero but for rounding, as of a bias before a normalisation, is as exact as the others are.
    least = max((_largest(each.value) for each in expected.values() if each.is_gradient), default=0.0)
    for name, (reference, of_rows, is_gradient) in expected.items():
        if name not in measured:
            continue  # rows of edges on some rank, or a module that has another name there
        got = measured[name].value
        if reference is None or got is None:
            if (reference is None) != (got is None):
                lines.append(f"{name} is there only {'on ranks' if reference is None else 'on one device'}")
            continue
        if reference.shape != got.shape:
            lines.append(
                f"{name} has shape {tuple(got.shape)} on ranks, {tuple(reference.shape)} on one device"
            )
            continue
        error, scale = (got - reference).abs().double(), max(_largest(reference), least * is_gradient)
        bad = ~(error <= tolerance * scale) & ~(got == reference) & ~(got.isnan() & reference.isnan())
        if not bad.any():
            continue
        line = (
            f"{name} differs by up to {_largest(error.nan_to_num(torch.inf)):.2g} (largest value {scale:.2g})"
        )
        if of_rows:
            rows = bad.flatten(1).any(1) if bad.dim() > 1 else bad
            first = int(rows.nonzero()[0])
            line += f" in {int(rows.sum())} of {len(rows)} rows, first in vertex {first}, of rank {int(part[first])}"
        lines.append(line)
    return lines


def _largest(value: Tensor | None) -> float:
    return value.abs().max().item() if value is not None and value.numel() else 0.0
